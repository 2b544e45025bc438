"""A convolution or matrix product does what follows it in a layer: bias, residual, ReLU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from runner.engine.graph import Graph, Node
from runner.engine.passes.rewriting import Rewrite, Roots, Uses, exchange, merged, other_operand
from runner.engine.tensor import Tensor

BiasOf = Callable[[Graph, Node, Tensor], Tensor | None]


def fuse_bias_and_relu(graph: Graph, roots: Roots) -> Rewrite:
    """Return the graph with conv2d and matmul fused with what alone reads them; nothing moves.

    conv2d: + bias (O,), reshaped to (O, 1, 1), + another tensor of its shape, then relu, each of them or not, in this
    order. matmul: + bias (n,), then relu. The fused node stands where the last of its parts stood, under its name.
    """
    uses = Uses(graph, roots)
    exchanged: dict[str, Node | None] = {}
    # From the end, so that of two convolutions that are added up the later one takes the sum, when all is there.
    for node in reversed(list(graph)):
        if node.op in _BIASES:
            layer = _Layer(uses, [node], exchanged)
            layer.take_what_follows()
            if len(layer.members) > 1:
                exchanged.update(dict.fromkeys(member.name for member in layer.members))
                exchanged[layer.members[-1].name] = layer.fused()
    return exchange(graph, exchanged, {}), {}


def _reshaped_bias(graph: Graph, y: Node, operand: Tensor) -> Tensor | None:
    """The vector (O,) that was reshaped to be added to every pixel of y (N, O, H, W)."""
    node = graph.nodes[operand.node]
    channels = y.outputs[0].shape[1]
    columns = ((channels, 1, 1), (1, channels, 1, 1))
    if node.op != "reshape" or node.device != y.device or node.outputs[0].shape not in columns:
        return None
    vector = node.inputs[0]
    return vector if graph.spec(vector).shape == (channels,) else None


def _row_bias(graph: Graph, y: Node, operand: Tensor) -> Tensor | None:
    """The vector (n,) that is added to every row of y (m, n)."""
    return operand if graph.spec(operand).shape == y.outputs[0].shape[1:] else None


_BIASES: dict[str, BiasOf] = {"conv2d": _reshaped_bias, "matmul": _row_bias}


@dataclass
class _Layer:
    """A growing chain of nodes that one fused node can stand for. taken: nodes of other chains."""

    uses: Uses
    members: list[Node]
    taken: dict[str, Node | None]
    added: list[Tensor] = field(default_factory=list)
    bias: bool = False
    residual: bool = False
    relu: bool = False

    def take_what_follows(self) -> None:
        """Let bias, residual and ReLU join, as far as they follow one another."""
        first = self.members[0]
        operand = self._next_operand()
        if operand is not None:
            vector = _BIASES[first.op](self.uses.graph, first, operand)
            if vector is not None:
                self.bias = self._join(vector)
                operand = self._next_operand()
        if operand is not None and first.op == "conv2d" and self.uses.graph.spec(operand) == first.outputs[0]:
            self.residual = self._join(operand)
        following = self._next("relu")
        if following is not None:
            self.members.append(following)
            self.relu = True

    def fused(self) -> Node:
        """The node that stands for the chain."""
        first, last = self.members[0], self.members[-1]
        attributes = {**first.attributes, "bias": self.bias, "relu": self.relu}
        if first.op == "conv2d":
            attributes["residual"] = self.residual
        else:
            attributes["dtype"] = first.outputs[0].dtype
        inputs = (*first.inputs, *self.added)
        return merged(self.members, last.name, f"{first.op}_fused", inputs, attributes, last.outputs)

    def _next(self, op: str) -> Node | None:
        reader = self.uses.sole_reader(self.members[-1])
        return reader if reader is not None and reader.op == op and reader.name not in self.taken else None

    def _next_operand(self) -> Tensor | None:
        following = self._next("add")
        return None if following is None else other_operand(following, self.members[-1][0])

    def _join(self, added: Tensor) -> bool:
        following = self._next("add")
        assert following is not None, "an operand was found beside the last member"
        self.members.append(following)
        self.added.append(added)
        return True
