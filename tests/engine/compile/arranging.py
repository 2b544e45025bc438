"""Small graphs with kernels that request unusual layouts."""

from collections.abc import Mapping, Sequence

from runner.engine.compile.layouts import Arranged, arrange
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.kernels.contract import Kernel, Layout
from tests.engine.run.fake_kernels import (
    MASKED,
    NOT_PLAIN,
    PLAIN,
    REVERSED,
    VIA_PLAIN,
    always,
    converting,
    fake_kernel,
    fake_registry,
    layout,
)
from tests.engine.running import CPU_0

SPEC = TensorSpec((2, 3), "float64")
CONVERT = fake_kernel("convert", converting(VIA_PLAIN))
WANTED = {tag: layout(tag, SPEC) for tag in (PLAIN, *NOT_PLAIN)}
NEG = fake_kernel("neg", always(REVERSED, REVERSED))
EXP = fake_kernel("exp", always(MASKED, MASKED))
TANH = fake_kernel("tanh", always(REVERSED, MASKED))
INTO = ("convert", PLAIN, REVERSED)
BACK = ("convert", REVERSED, PLAIN)


def variable(graph: Graph, name: str) -> Tensor:
    return ops.variable(graph, SPEC.shape, SPEC.dtype, name=name)


def started() -> tuple[Graph, Tensor]:
    """A graph with a placeholder."""
    graph = Graph()
    return graph, ops.placeholder(graph, SPEC.shape, SPEC.dtype, name="x")


def arranged(
    graph: Graph,
    fetches: Sequence[Tensor],
    *kernels: Kernel,
    settled: Mapping[str, Layout] | None = None,
    device: str = CPU_0,
) -> Arranged:
    feeds = {node[0]: node[0] for node in graph if node.op == "placeholder"}
    return arrange(device, graph, fetches, feeds, fake_registry(*kernels), settled or {})


def steps(found: Arranged) -> list[tuple[str, str, str]]:
    """The ops of instructions, each with the layouts of its first input and output."""
    return [
        (i.op, *("".join(each.tag for each in side[:1]) for side in (i.arrangement.inputs, i.arrangement.outputs)))
        for i in found.instructions
    ]


def layout_of(found: Arranged, name: str) -> str:
    """The layout of a variable."""
    return found.slots[found.residents[name]].layout.tag
