"""Lossy compression of transfers: float32 travels as its upper 16 bits (TensorFlow whitepaper 2016, section 5.5).

A tensor is truncated once, on the device that computes it, and widened once on each device that reads it, "by just
filling in zeroes for the lost portion of the mantissa". This halves the bytes of a transfer.

A tensor that another device reads is truncated for all its readers, including fetches and readers on its own device. So
all devices compute with the same bits: the owner of a slice of a sum continues with the values that it sends, and
replicas stay equal. A sum adds the parts as its device has them: received parts are truncated, a part that is not sent
is whole. There is one exception: the value of a variable, and an assigned value, are read whole on their own device and
truncated on others. An update must add to all bits, because small updates would otherwise be lost for good.

Tensors of other dtypes, empty tensors and scalars are not compressed. Scalars are mostly metrics such as the loss, and
two saved bytes do not pay for two nodes.
"""

from runner.engine.compile.passes.rewriting import Rewrite, Roots, rewired
from runner.engine.graph import ops
from runner.engine.graph.device import device_slug
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.engine.graph.tensor import Tensor, TensorSpec

STATE = frozenset({"variable", "assign"})
"""Ops whose output is the value of a variable, which is whole on its own device."""


def compress_transfers(graph: Graph, roots: Roots) -> Rewrite:
    """Return a placed graph in which float32 tensors between devices pass through ``truncate_to_bfloat16`` and back.

    Runs before edges are cut. Fetches move to the widened tensor, on the same device. The new nodes have the layer of
    the tensor's node. A second run changes nothing, because only bfloat16 tensors travel then.
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
        self._truncated: dict[Tensor, Tensor] = {}
        self._widened: dict[tuple[Tensor, str], Tensor] = {}

    def copy(self, node: Node) -> None:
        """Append ``node`` with the inputs as its device sees them."""
        self.result.insert(rewired(node, {tensor: self.seen_on(node.device, tensor) for tensor in node.inputs}))

    def seen_on(self, device: str, tensor: Tensor) -> Tensor:
        """Return the tensor that nodes on a device read instead of a tensor."""
        producer = self.result.nodes[tensor.node]
        whole = tensor not in self._travelling or (producer.op in STATE and producer.device == device)
        if whole:
            return tensor
        if tensor not in self._truncated:
            with self.result.device(producer.device), self.result.layer(producer.layer):
                self._truncated[tensor] = ops.truncate_to_bfloat16(
                    self.result, tensor, name=f"compress/{_flat(tensor)}"
                )
        if (tensor, device) not in self._widened:
            name = f"decompress/{_flat(tensor)}/{device_slug(device)}"
            with self.result.device(device), self.result.layer(producer.layer):
                self._widened[tensor, device] = ops.cast(self.result, self._truncated[tensor], "float32", name=name)
        return self._widened[tensor, device]


def _travelling(graph: Graph) -> frozenset[Tensor]:
    """Return the tensors that another device reads and that can be compressed."""
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
