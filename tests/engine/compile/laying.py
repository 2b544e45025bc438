"""Small graphs whose memory is laid out and played."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.compile.plan import Place
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.kernels.contract import Kernel
from runner.kernels.memory import ALIGNMENT
from tests.engine.compile.played_memory import play
from tests.engine.run.fake_kernels import PLAIN, always, fake_kernel, fake_registry

SIZE = 8
SPEC = TensorSpec((SIZE,), "float64")
"""One cache line."""
LINE = ALIGNMENT
W = Place(0, "w")
"""In the variable w."""


def placeholder(graph: Graph, name: str = "x") -> Tensor:
    return ops.placeholder(graph, SPEC.shape, SPEC.dtype, name=name)


def variable(graph: Graph, name: str = "w") -> Tensor:
    return ops.variable(graph, SPEC.shape, SPEC.dtype, name=name)


def greedy(op: str, in_place: Collection[tuple[int, int]] = ((0, 0),), scratch_bytes: int = 0) -> Kernel:
    """A plain kernel that can compute in place."""
    return fake_kernel(op, always(PLAIN, PLAIN, in_place=in_place, scratch_bytes=scratch_bytes))


class Laid:
    """A graph whose memory was laid out and played."""

    def __init__(self, graph: Graph, fetches: Sequence[Tensor], *kernels: Kernel) -> None:
        part = order_writes(graph)
        feeds = {node[0]: node[0] for node in part if node.op == "placeholder"}
        self.arranged, self.placed = play(part, fetches, feeds, fake_registry(*kernels), {})

    @property
    def ops(self) -> list[str]:
        return [i.op for i in self.placed.instructions]

    def at(self, name: str, port: int = 0) -> Place:
        """Where the output of a node lies."""
        (found,) = (i for i in self.arranged.instructions if i.node == name)
        return self.placed.places[found.outputs[port]]

    def fed(self, number: int = 0) -> Place:
        """Where a fed value lies."""
        return self.placed.places[self.arranged.feeds[number].slot]


def chain(graph: Graph, x: Tensor, length: int) -> Tensor:
    """n0 = -x, n1 = -n0, ..."""
    for k in range(length):
        x = ops.neg(graph, x, name=f"n{k}")
    return x


def assigned(graph: Graph, value: Tensor, name: str = "w") -> Graph:
    """Let a variable have a value."""
    ops.assign(graph, Tensor(name), value, name=f"set_{name}")
    return graph
