"""Small graphs whose memory is laid out and played."""

from collections.abc import Collection, Sequence

from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from runner.kernels.contract import Kernel
from runner.kernels.memory import ALIGNMENT
from tests.engine.compile.played_memory import play
from tests.engine.run.fake_kernels import PLAIN, always, fake_kernel, fake_registry

SIZE = 8
"""Numbers of float64 in a cache line."""

LINE = ALIGNMENT


def greedy(op: str, in_place: Collection[tuple[int, int]] = ((0, 0),), scratch_bytes: int = 0) -> Kernel:
    """A plain kernel that can compute in place."""
    return fake_kernel(op, always(PLAIN, PLAIN, in_place=in_place, scratch_bytes=scratch_bytes))


class Laid:
    """A graph whose memory was laid out and played."""

    def __init__(self, graph: Graph, fetches: Sequence[Tensor], *kernels: Kernel) -> None:
        part = order_writes(graph)
        feeds = {node[0]: node[0] for node in part if node.op == "placeholder"}
        self.arranged, self.placed = play(part, fetches, feeds, fake_registry(*kernels), {})
