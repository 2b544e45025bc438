"""Fused calls of machine code, and the node named when one of them fails."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from runner.engine.run.recording import COMPUTE, INPUT, Recorder
from runner.errors import NumericError, RunnerError
from runner.kernels.contract import NativeCall
from tests.engine.run.fake_kernels import PLAIN, always, fake_kernel, fake_registry, join
from tests.engine.running import CPU_0, Bench

X, LAST = Tensor("x"), Tensor("last")
ONES = np.ones(2)
EXPECTED = np.sqrt(np.exp(-np.tanh(np.exp(-ONES))))


@pytest.fixture
def graph() -> Graph:
    """x -> n = neg -> e = exp -> t = tanh -> n2 = neg -> e2 = exp -> last = sqrt."""
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float64", name="x")
    chain = {"n": ops.neg, "e": ops.exp, "t": ops.tanh, "n2": ops.neg, "e2": ops.exp, "last": ops.sqrt}
    for name, op in chain.items():
        x = op(graph, x, name=name)
    return graph


class Machine:
    """Joins fake machine-code calls, records how many run together, and can make one fail."""

    def __init__(self, *native: str, calls: int = 1) -> None:
        """native: ops computed by machine code. calls: for each node."""
        self.runs: list[int] = []
        self.fail: tuple[int, int] | None = None
        plainly = always(PLAIN, PLAIN)
        self.kernels = fake_registry(*(fake_kernel(op, plainly, native=calls) for op in native))
        self.kernels.join = self.join

    def join(self, calls: Sequence[NativeCall]) -> Callable[[], int]:
        together = join(calls)

        def run() -> int:
            self.runs.append(len(calls))
            if self.fail is not None:
                position, status = self.fail
                return (1 + position) << 16 | status
            return together()

        return run


@pytest.mark.parametrize(
    ("native", "runs"), [(("neg", "exp"), [2, 2]), (("tanh", "sqrt"), [1, 1]), (("neg", "tanh"), [1, 2]), ((), [])]
)
def test_neighbouring_calls_are_fused(graph: Graph, native: tuple[str, ...], runs: list[int]) -> None:
    machine = Machine(*native)
    bench = Bench(graph, machine.kernels, [LAST])
    for _ in range(2):
        np.testing.assert_array_equal(bench.run({X: ONES})[LAST], EXPECTED)
    assert machine.runs == runs * 2


@pytest.mark.parametrize(
    ("native", "position", "node"),
    [
        (("neg", "exp"), 0, r"'n' \(op 'neg'\)"),
        (("neg", "exp"), 1, r"'e' \(op 'exp'\)"),
        (("exp", "tanh", "neg"), 3, r"'n2' \(op 'neg'\)"),
        (("tanh", "neg"), 0, r"'n' \(op 'neg'\)"),
        (("tanh",), 0, r"'t' \(op 'tanh'\)"),
        (("sqrt",), 0, r"'last' \(op 'sqrt'\)"),
    ],
)
@pytest.mark.parametrize("status", [1, 0xFFFF])
def test_failed_call_names_node_and_status(
    graph: Graph, native: tuple[str, ...], position: int, node: str, status: int
) -> None:
    machine = Machine(*native)
    bench = Bench(graph, machine.kernels, [LAST])
    bench.run({X: ONES})
    machine.fail = (position, status)
    expected = rf"^node {node} on {CPU_0} failed in step 3: the library returned status {status}$"
    with pytest.raises(RunnerError, match=expected):
        bench.run({X: ONES}, step=3)


def test_node_may_have_several_calls(graph: Graph) -> None:
    machine = Machine("neg", "exp", calls=3)
    bench = Bench(graph, machine.kernels, [LAST])
    np.testing.assert_array_equal(bench.run({X: ONES})[LAST], EXPECTED)
    assert machine.runs == [6, 6]


@pytest.mark.parametrize(("position", "node"), [(0, "n"), (2, "n"), (3, "e"), (5, "e")])
def test_failure_of_any_call_names_the_node(graph: Graph, position: int, node: str) -> None:
    machine = Machine("neg", "exp", calls=3)
    bench = Bench(graph, machine.kernels, [LAST])
    machine.fail = (position, 9)
    with pytest.raises(RunnerError, match=rf"^node '{node}' .* status 9$"):
        bench.run({X: ONES})


def test_check_finite_does_not_fuse_calls(graph: Graph) -> None:
    machine = Machine("neg", "exp")
    bench = Bench(graph, machine.kernels, [LAST], check_finite=True)
    np.testing.assert_array_equal(bench.run({X: ONES})[LAST], EXPECTED)
    assert machine.runs == [1, 1, 1, 1]
    with pytest.raises(NumericError, match=r"node 'e' \(op 'exp'\), output 0: 1 of 2 values are not finite"):
        bench.run({X: np.array([-1e6, 0.0])})
    machine.fail = (0, 9)
    with pytest.raises(RunnerError, match=r"^node 'n' .* status 9$"):
        bench.run({X: ONES})


def test_calls_are_not_fused_while_recording(graph: Graph) -> None:
    machine = Machine("neg", "exp", calls=2)
    bench = Bench(graph, machine.kernels, [LAST])
    recorder = Recorder()
    for chosen, runs in ((None, [4, 4]), (recorder, [2, 2, 2, 2]), (None, [4, 4])):
        machine.runs.clear()
        bench.executor.record(chosen, 4)
        np.testing.assert_array_equal(bench.run({X: ONES}, step=3)[LAST], EXPECTED)
        assert machine.runs == runs
    assert [each[:-2] for each in recorder.spans] == [(4, 1, 3, k, COMPUTE) for k in range(6)]


def test_work_before_a_run_is_recorded_with_that_run(graph: Graph) -> None:
    bench = Bench(graph, Machine("neg", "exp").kernels, [LAST])
    assert bench.executor.before_run(5, INPUT, lambda: "read") == "read"
    bench.run({X: ONES})
    recorder = Recorder()
    bench.executor.record(recorder)
    assert bench.executor.before_run(6, INPUT, lambda: "read") == "read"
    bench.run({X: ONES}, step=6)
    assert {each[:3] for each in recorder.spans} == {(0, 1, 6)}
    assert [each.kind for each in recorder.spans] == [INPUT, *[COMPUTE] * 6]


def test_failure_is_named_while_recording_and_checking(graph: Graph) -> None:
    machine = Machine("neg", "exp")
    bench = Bench(graph, machine.kernels, [LAST], check_finite=True)
    bench.executor.record(Recorder())
    with pytest.raises(NumericError, match=r"node 'e' \(op 'exp'\), output 0: 1 of 2 values are not finite"):
        bench.run({X: np.array([-1e6, 0.0])})
    machine.fail = (0, 9)
    with pytest.raises(RunnerError, match=r"^node 'n' .* status 9$"):
        bench.run({X: ONES})
