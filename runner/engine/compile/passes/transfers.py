"""Edges between devices as pairs of Send and Recv (TensorFlow whitepaper 2016, section 3.2.2).

There is one pair per (tensor, destination device), however many nodes read the tensor there. A control edge between
devices becomes the transfer of an empty tensor. Constants are not sent but repeated on the devices that read them.
"""

from dataclasses import replace

from runner.engine.graph.device import device_slug
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.engine.graph.tensor import Tensor, TensorSpec

_TO = "->"
_TOKEN = TensorSpec((0,), "float32")


def transfer_key(tensor: Tensor, destination: str) -> str:
    """Return the name of a transfer in the rendezvous, unique within a step."""
    return f"{tensor}{_TO}{destination}"


def sent_tensor(key: str) -> str:
    """Return the name of the sent tensor, which is in one place however many devices read it."""
    return key.rpartition(_TO)[0] or key


def insert_transfers(graph: Graph) -> Graph:
    """Return a placed graph in which every edge between devices is a Send and a Recv.

    Each Recv has its Send as a control input. When the graph is split by device, the rendezvous replaces this edge.
    """
    cut = _Cut(graph)
    for node in graph:
        cut.copy(node)
    return cut.result


class _Cut:
    def __init__(self, source: Graph) -> None:
        self.source = source
        self.result = Graph()
        self._arrivals: dict[tuple[Tensor, str], Tensor] = {}
        self._tokens: dict[str, Tensor] = {}

    def copy(self, node: Node) -> None:
        """Append ``node`` with remote inputs replaced by the tensors that its device receives."""
        inputs = tuple(self._local(tensor, node) for tensor in node.inputs)
        controls = tuple(self._local_control(name, node) for name in node.control_inputs)
        # The nodes are placed, and a colocation could name nodes in the graphs of other devices.
        self.result.insert(replace(node, inputs=inputs, control_inputs=controls, colocate_with=()))

    def _local(self, tensor: Tensor, reader: Node) -> Tensor:
        producer = self.result.nodes[tensor.node]
        if producer.device == reader.device:
            return tensor
        arrival = (tensor, reader.device)
        if arrival not in self._arrivals:
            is_constant = producer.op in ("fill", "constant") and not producer.control_inputs
            give = self._repeated if is_constant else self._transfer
            self._arrivals[arrival] = give(tensor, producer, reader.device)
        return self._arrivals[arrival]

    def _local_control(self, name: str, reader: Node) -> str:
        before = self.result.nodes[name]
        if before.device == reader.device:
            return name
        if name not in self._tokens:
            token = Node(
                f"{name}/done",
                "fill",
                (),
                {"value": 0.0, "shape": _TOKEN.shape, "dtype": _TOKEN.dtype},
                (_TOKEN,),
                before.device,
                control_inputs=(name,),
            )
            self._tokens[name] = self.result.insert(token)[0]
        return self._local(self._tokens[name], reader).node

    def _repeated(self, tensor: Tensor, producer: Node, destination: str) -> Tensor:
        name = f"{producer.name}/on/{device_slug(destination)}"
        return self.result.insert(replace(producer, name=name, device=destination, colocate_with=()))[tensor.port]

    def _transfer(self, tensor: Tensor, producer: Node, destination: str) -> Tensor:
        key = transfer_key(tensor, destination)
        spec = self.result.spec(tensor)
        slug = device_slug(destination)
        send = self.result.insert(
            Node(
                f"send/{tensor.node}_{tensor.port}/{slug}",
                "send",
                (tensor,),
                {"key": key, "destination": destination},
                (),
                producer.device,
                layer=producer.layer,
            )
        )
        recv = Node(
            f"recv/{tensor.node}_{tensor.port}/{slug}",
            "recv",
            (),
            {"key": key, "source": producer.device, "shape": spec.shape, "dtype": spec.dtype},
            (spec,),
            destination,
            control_inputs=(send.name,),
            layer=producer.layer,
        )
        return self.result.insert(recv)[0]
