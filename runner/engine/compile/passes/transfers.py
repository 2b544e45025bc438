"""Edges between devices as pairs of Send and Recv (TensorFlow whitepaper 2016, section 3.2.2).

There is one pair per (tensor, destination device), however many nodes read the tensor there. A control edge between
devices becomes the transfer of an empty tensor. Constants are not sent but duplicated on the devices that read them.
"""

from runner.engine.compile.passes.rewriting import Rewrite, Roots, rewired
from runner.engine.graph import Graph, Node, Tensor, ops
from runner.engine.graph.device import device_slug

TRANSFERS = frozenset({"send", "recv"})
"""Ops that pass tensors from one device to another."""

_TO = "->"


def transfer_key(tensor: Tensor, destination: str) -> str:
    """Return the name of a transfer in the rendezvous, unique within a step."""
    return f"{tensor}{_TO}{destination}"


def sent_tensor(key: str) -> str:
    """Return the name of the sent tensor. The sender stores the tensor once, however many devices read it."""
    return key.rpartition(_TO)[0] or key


def _flat(tensor: Tensor) -> str:
    return f"{tensor.node}_{tensor.port}"


def _is_constant(node: Node) -> bool:
    """Return whether devices that read a node can compute it themselves, because it reads nothing and need not wait."""
    return node.op in ("fill", "constant") and not node.control_inputs


def insert_transfers(graph: Graph) -> Graph:
    """Return the placed graph with every edge between devices replaced by a Send and a Recv.

    Each Recv has its Send as a control input. When the graph is split by device, the rendezvous replaces this edge.
    """
    cut = _Cut()
    for node in graph:
        cut.copy(node)
    return cut.result


class _Cut:
    def __init__(self) -> None:
        self.result = Graph()
        self._arrivals: dict[tuple[Tensor, str], Tensor] = {}
        self._tokens: dict[str, Tensor] = {}

    def copy(self, node: Node) -> None:
        """Append ``node`` with remote inputs replaced by the tensors that its device receives."""
        inputs = tuple(self._local(tensor, node) for tensor in node.inputs)
        controls = tuple(self._local_control(name, node) for name in node.control_inputs)
        # Placed nodes need no colocation, which could name nodes in the graphs of other devices.
        if (inputs, controls, ()) != (node.inputs, node.control_inputs, node.colocate_with):
            node = node.changed(inputs=inputs, control_inputs=controls, colocate_with=())
        self.result.insert(node)

    def _local(self, tensor: Tensor, reader: Node) -> Tensor:
        producer = self.result.nodes[tensor.node]
        if producer.device == reader.device:
            return tensor
        arrival = (tensor, reader.device)
        if arrival not in self._arrivals:
            give = self._repeated if _is_constant(producer) else self._transfer
            self._arrivals[arrival] = give(tensor, producer, reader.device)
        return self._arrivals[arrival]

    def _local_control(self, name: str, reader: Node) -> str:
        before = self.result.nodes[name]
        if before.device == reader.device:
            return name
        if name not in self._tokens:
            with self.result.device(before.device), self.result.control_dependencies([name]):
                self._tokens[name] = ops.fill(self.result, 0.0, (0,), "float32", name=f"{name}/done")
        return self._local(self._tokens[name], reader).node

    def _repeated(self, tensor: Tensor, producer: Node, destination: str) -> Tensor:
        name = f"{producer.name}/on/{device_slug(destination)}"
        return self.result.insert(producer.changed(name=name, device=destination, colocate_with=()))[tensor.port]

    def _transfer(self, tensor: Tensor, producer: Node, destination: str) -> Tensor:
        graph, source, key = self.result, producer.device, transfer_key(tensor, destination)
        spec, place = graph.spec(tensor), f"{_flat(tensor)}/{device_slug(destination)}"
        with graph.layer(producer.layer), graph.device(source):
            send = ops.send(graph, tensor, key=key, destination=destination, name=f"send/{place}")
        with graph.layer(producer.layer), graph.device(destination), graph.control_dependencies([send]):
            return ops.recv(graph, key=key, source=source, shape=spec.shape, dtype=spec.dtype, name=f"recv/{place}")


STATE = frozenset({"variable", "assign"})
"""Ops whose output is the value of a variable, which is read in full precision on the variable's device."""


def compress_transfers(graph: Graph, roots: Roots) -> Rewrite:
    """Return the placed graph with float32 tensors truncated to bfloat16 before each transfer and cast back afterwards.

    A tensor is truncated once, on the device that computes it, and cast back once on each device that reads it, "by
    just filling in zeroes for the lost portion of the mantissa" (whitepaper, section 5.5). This halves the bytes.

    A tensor that another device reads is truncated for all its readers, including fetches and readers on its own
    device. So all devices compute with the same bits: the owner of a slice of a sum continues with the values that it
    sends, and replicas stay equal. Local parts of a sum that are not sent are added in full precision. There is one
    exception: the value of a variable, and an assigned value, are read in full precision on their own device and
    truncated on other devices. Without this exception, small updates of a variable would be lost permanently.

    Constants, which are not sent, tensors of other dtypes, empty tensors and scalars are not compressed. Scalars are
    mostly metrics such as the loss, and two saved bytes are not worth two nodes.

    This pass runs before :func:`insert_transfers`. A fetch of a truncated tensor reads the tensor that is cast back
    on the same device. New nodes have the layer of the tensor's node. A second run of this pass changes nothing.
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
        self._restored: dict[tuple[Tensor, str], Tensor] = {}

    def copy(self, node: Node) -> None:
        """Append ``node`` with the inputs that its device reads."""
        self.result.insert(rewired(node, {tensor: self.seen_on(node.device, tensor) for tensor in node.inputs}))

    def seen_on(self, device: str, tensor: Tensor) -> Tensor:
        """Return the tensor that nodes on a device read in place of ``tensor``."""
        producer = self.result.nodes[tensor.node]
        whole = tensor not in self._travelling or (producer.op in STATE and producer.device == device)
        if whole:
            return tensor
        if tensor not in self._truncated:
            with self.result.device(producer.device), self.result.layer(producer.layer):
                self._truncated[tensor] = ops.truncate_to_bfloat16(
                    self.result, tensor, name=f"compress/{_flat(tensor)}"
                )
        if (tensor, device) not in self._restored:
            name = f"decompress/{_flat(tensor)}/{device_slug(device)}"
            with self.result.device(device), self.result.layer(producer.layer):
                self._restored[tensor, device] = ops.cast(self.result, self._truncated[tensor], "float32", name=name)
        return self._restored[tensor, device]


def _travelling(graph: Graph) -> frozenset[Tensor]:
    """Return the tensors that another device reads and that can be compressed."""
    between = {t for node in graph for t in node.inputs if graph.nodes[t.node].device != node.device}
    specs = {tensor: graph.spec(tensor) for tensor in between if not _is_constant(graph.nodes[tensor.node])}
    return frozenset(t for t, spec in specs.items() if spec.dtype == "float32" and spec.rank > 0 and spec.size > 0)
