"""Lossy compression of transfers: float32 travels as its upper 16 bits (TensorFlow whitepaper 2016, section 5.5).

A tensor is cut once, where it is computed, and widened once on each device that reads it, "by just filling in zeroes
for the lost portion of the mantissa". What crosses a wire is half as many bytes.

Who reads what. A tensor that another device reads is cut for all its readers, fetches and those on its own device
too. So everybody computes with the same bits: the owner of a slice of a sum goes on with what it sends, and replicas
stay equal. Each sum is that of the parts as the device has them: parts that came are cut, its own that never leaves
is not. One exception: what a variable holds, or is assigned, is read whole on its own device, because an update has
to add to all the bits there are, or small ones are lost for good; other devices see it cut.

Left alone are tensors of another dtype, empty ones, and scalars: those are mostly what a run reports (loss,
accuracy), and two bytes less do not pay for two nodes.
"""

from __future__ import annotations

from runner.engine import ops
from runner.engine.device import device_slug
from runner.engine.graph import Graph, Node
from runner.engine.passes.rewriting import Rewrite, Roots, rewired
from runner.engine.tensor import Tensor, TensorSpec

STATE = frozenset({"variable", "assign"})
"""Ops whose output is what a variable holds: whole on its own device."""


def compress_transfers(graph: Graph, roots: Roots) -> Rewrite:
    """Return a placed graph in which float32 tensors between devices pass through ``truncate_to_bfloat16`` and back.

    Runs before edges are cut. Fetches move to the widened tensor, on the same device. The new nodes carry the layer of
    the tensor's node. A second run changes nothing: what travels then is bfloat16.
    """
    compression = _Compression(graph)
    for node in graph:
        compression.copy(node)
    moved = {tensor: compression.seen_on(graph.nodes[tensor.node].device, tensor) for tensor in sorted(roots.fetches)}
    return compression.result, {old: new for old, new in moved.items() if old != new}


class _Compression:
    def __init__(self, source: Graph) -> None:
        self.result = Graph()
        self._travelling = _travelling(source)
        self._narrow: dict[Tensor, Tensor] = {}
        self._wide: dict[tuple[Tensor, str], Tensor] = {}

    def copy(self, node: Node) -> None:
        """Append ``node``, reading what travels as its device sees it."""
        self.result.insert(rewired(node, {tensor: self.seen_on(node.device, tensor) for tensor in node.inputs}))

    def seen_on(self, device: str, tensor: Tensor) -> Tensor:
        """What nodes on a device read for a tensor."""
        producer = self.result.nodes[tensor.node]
        whole = tensor not in self._travelling or (producer.op in STATE and producer.device == device)
        if whole:
            return tensor
        if tensor not in self._narrow:
            with self.result.device(producer.device), self.result.layer(producer.layer):
                self._narrow[tensor] = ops.truncate_to_bfloat16(self.result, tensor, name=f"compress/{_flat(tensor)}")
        if (tensor, device) not in self._wide:
            name = f"decompress/{_flat(tensor)}/{device_slug(device)}"
            with self.result.device(device), self.result.layer(producer.layer):
                self._wide[tensor, device] = ops.cast(self.result, self._narrow[tensor], "float32", name=name)
        return self._wide[tensor, device]


def _travelling(graph: Graph) -> frozenset[Tensor]:
    """The tensors that are worth it and that another device reads."""
    return frozenset(
        tensor
        for node in graph
        for tensor in node.inputs
        if graph.nodes[tensor.node].device != node.device and _is_compressible(graph.spec(tensor))
    )


def _is_compressible(spec: TensorSpec) -> bool:
    return spec.dtype == "float32" and spec.rank > 0 and spec.size > 0


def _flat(tensor: Tensor) -> str:
    return f"{tensor.node}_{tensor.port}"
