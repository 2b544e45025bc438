"""Variables across steps, and fused calls of machine code.

All readers of a variable see the value from the start of the step; fetches and feeds do not share its memory. If a
fused call fails, the error names the failed node.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from runner.engine.graph import Graph, Tensor, ops
from runner.engine.run.calls import join_calls
from runner.engine.run.recording import COMPUTE, INPUT, Recorder
from runner.errors import NumericError, ResourceError, RunnerError
from runner.kernels.contract import NOT_YET, NativeCall
from runner.kernels.platform import HostPlatform, Work
from runner.kernels.registry import Registry
from tests.engine.run.fake_kernels import PLAIN, always, fake_kernel, fake_registry, join, refusing
from tests.engine.running import CPU_0, Bench, Function, Replaced, client, session

X = Tensor("x")


def counter() -> Graph:
    """Return a graph that assigns w + 1 to w and has readers of w before and after the assign in graph order."""
    graph = Graph()
    w = ops.variable(graph, (2,), "float64", name="w")
    ops.neg(graph, w, name="before")
    ops.assign(graph, w, ops.add(graph, w, ops.fill(graph, 1.0, (2,), "float64")), name="set")
    ops.neg(graph, ops.identity(graph, w), name="after")
    return graph


@pytest.mark.parametrize("also", [[], ["w"]])
def test_every_reader_sees_the_value_at_the_start_of_the_step(registry: Registry, also: list[str]) -> None:
    fetches = [Tensor(name) for name in ("before", "set", "after", "identity", *also)]
    bench = Bench(counter(), registry, fetches)
    bench.put("w", np.zeros(2))
    for step in range(3):
        before, new, after, *old = (value[0] for value in bench.run(step=step).values())
        assert (before, new, after, old) == (-step, step + 1, -step, [step] * (1 + len(also)))
    assert bench.value("w").tolist() == [3.0, 3.0]


def test_variables_keep_their_values_when_the_arena_grows(registry: Registry) -> None:
    bench = Bench(counter(), registry, [Tensor("set")])
    bench.put("w", np.zeros(2))
    bench.run()
    bench.arena.at_least(10_000, bench.executor)
    assert bench.run()[Tensor("set")].tolist() == [2.0, 2.0]
    with pytest.raises(ResourceError):
        bench.arena.at_least(1 << 62, bench.executor)
    assert bench.run()[Tensor("set")].tolist() == [3.0, 3.0]


def assigned_from_feed() -> Graph:
    graph = Graph()
    w = ops.variable(graph, (2,), "float64", name="w")
    ops.assign(graph, w, ops.placeholder(graph, (2,), "float64", name="x"), name="set")
    return graph


def test_step_with_wrong_feed_assigns_nothing(registry: Registry) -> None:
    bench = Bench(assigned_from_feed(), registry)
    with pytest.raises(RunnerError, match="feed x:0"):
        bench.run({X: np.ones(3)})
    with pytest.raises(RunnerError, match="variable 'w' has no value yet"):
        bench.variables.require(frozenset({"w"}))


def test_failed_first_step_marks_no_variable_as_assigned(registry: Registry) -> None:
    graph = assigned_from_feed()
    bench = Bench(graph, Replaced(registry, {"exp": refusing(np.exp, lambda x: x[0] < 0)}), [ops.exp(graph, X)])
    with pytest.raises(RunnerError, match="'exp'"):
        bench.run({X: -np.ones(2)})
    with pytest.raises(RunnerError, match="variable 'w' has no value yet"):
        bench.variables.require(frozenset({"w"}))
    bench.run({X: np.ones(2)})
    bench.variables.require(frozenset({"w"}))


def test_refused_step_works_after_the_variable_has_been_assigned(registry: Registry) -> None:
    graph = counter()
    ops.assign(graph, Tensor("w"), ops.fill(graph, 1.0, (2,), "float64"), name="init")
    clients = client("init", targets=["init"]), client("train", [Tensor("before")], targets=["set"])
    with session(graph, registry, *clients) as opened:
        for step in range(2):
            with pytest.raises(RunnerError, match="variable 'w' has no value yet"):
                opened.run("train", step=step)
        opened.run("init")
        assert [opened.run("train")["before:0"][0] for _ in range(2)] == [-1.0, -2.0]


def test_values_are_required_only_before_the_first_step(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(counter(), registry)
    calls: list[str] = []

    def noted(name: str, method: Function, names: frozenset[str]) -> None:
        calls.append(name)
        method(names)

    for name in ("require", "mark_assigned"):
        monkeypatch.setattr(bench.variables, name, partial(noted, name, getattr(bench.variables, name)))
    with pytest.raises(RunnerError):
        bench.run()
    bench.put("w", np.zeros(2))
    calls.clear()
    for step in range(3):
        bench.run(step=step)
    assert calls == ["require", "mark_assigned"]


@pytest.mark.parametrize("fetch", ["w", "set"])
def test_variable_does_not_share_memory_with_a_feed_or_fetch(registry: Registry, fetch: str) -> None:
    bench = Bench(assigned_from_feed(), registry, [Tensor(fetch)])
    bench.put("w", np.zeros(2))
    value = np.ones(2)
    bench.run({X: value})[Tensor(fetch)][:] = 7.0
    value[:] = 7.0
    assert bench.value("w").tolist() == [1.0, 1.0]


LAST = Tensor("last")
ONES = np.ones(2)
EXPECTED = np.sqrt(np.exp(-np.tanh(np.exp(-ONES))))


@pytest.fixture
def graph() -> Graph:
    """Return a chain of nodes: x -> n (neg) -> e (exp) -> t (tanh) -> n2 (neg) -> e2 (exp) -> last (sqrt)."""
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float64", name="x")
    chain = {"n": ops.neg, "e": ops.exp, "t": ops.tanh, "n2": ops.neg, "e2": ops.exp, "last": ops.sqrt}
    for name, op in chain.items():
        x = op(graph, x, name=name)
    return graph


class Machine:
    """A fake library that joins machine-code calls, records the number of calls in each run, and can make one fail."""

    def __init__(self, *native: str, calls: int = 1) -> None:
        """Create kernels for the ops ``native``, each of which makes ``calls`` machine-code calls."""
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
def test_neighboring_calls_are_fused(graph: Graph, native: tuple[str, ...], runs: list[int]) -> None:
    machine = Machine(*native)
    bench = Bench(graph, machine.kernels, [LAST])
    for _ in range(2):
        np.testing.assert_array_equal(bench.run({X: ONES})[LAST], EXPECTED)
    assert machine.runs == runs * 2


@pytest.mark.parametrize(
    ("native", "calls", "position", "node"),
    [
        (("neg", "exp"), 1, 0, r"'n' \(op 'neg'\)"),
        (("neg", "exp"), 1, 1, r"'e' \(op 'exp'\)"),
        (("exp", "tanh", "neg"), 1, 3, r"'n2' \(op 'neg'\)"),
        (("tanh", "neg"), 1, 0, r"'n' \(op 'neg'\)"),
        (("tanh",), 1, 0, r"'t' \(op 'tanh'\)"),
        (("sqrt",), 1, 0, r"'last' \(op 'sqrt'\)"),
        *((("neg", "exp"), 3, position, "'n'") for position in (0, 2)),
        *((("neg", "exp"), 3, position, "'e'") for position in (3, 5)),
    ],
)
@pytest.mark.parametrize("status", [1, 0xFFFF])
def test_failed_call_names_node_and_status(
    graph: Graph, native: tuple[str, ...], calls: int, position: int, node: str, status: int
) -> None:
    machine = Machine(*native, calls=calls)
    bench = Bench(graph, machine.kernels, [LAST])
    np.testing.assert_array_equal(bench.run({X: ONES})[LAST], EXPECTED)
    machine.fail = (position, status)
    expected = rf"^node {node}.* on {CPU_0} failed in step 3: the library returned status {status}$"
    with pytest.raises(RunnerError, match=expected):
        bench.run({X: ONES}, step=3)


def test_calls_are_not_fused_while_recording(graph: Graph) -> None:
    machine = Machine("neg", "exp", calls=2)
    bench = Bench(graph, machine.kernels, [LAST])
    recorder = Recorder()
    for chosen, runs in ((None, [4, 4]), (recorder, [2, 2, 2, 2]), (None, [4, 4])):
        machine.runs.clear()
        bench.executor.record(chosen, 4)
        assert bench.executor.before_run(3, INPUT, lambda: "read") == "read"
        np.testing.assert_array_equal(bench.run({X: ONES}, step=3)[LAST], EXPECTED)
        assert machine.runs == runs
    expected = [(4, 1, 3, 0, INPUT), *((4, 1, 3, position, COMPUTE) for position in range(6))]
    assert [each[:-2] for each in recorder.spans] == expected


@pytest.mark.parametrize("recorded", [False, True])
def test_calls_are_not_fused_with_check_finite(graph: Graph, recorded: bool) -> None:
    machine = Machine("neg", "exp")
    bench = Bench(graph, machine.kernels, [LAST], check_finite=True)
    if recorded:
        bench.executor.record(Recorder())
    np.testing.assert_array_equal(bench.run({X: ONES})[LAST], EXPECTED)
    assert machine.runs == [1, 1, 1, 1]
    with pytest.raises(NumericError, match=r"node 'e' \(op 'exp'\), output 0: 1 of 2 values are not finite"):
        bench.run({X: np.array([-1e6, 0.0])})
    machine.fail = (0, 9)
    with pytest.raises(RunnerError, match=r"^node 'n' .* status 9$"):
        bench.run({X: ONES})


def test_calls_that_wait_begin_a_group_which_is_repeated_until_they_succeed() -> None:
    """Computations and sends of a group run once, after all its waits."""
    made: list[str] = []
    absent = {"wait 2": 2, "wait 3": 1}

    def work(name: str) -> Work:
        def body() -> int:
            made.append(name)
            return NOT_YET if absent.get(name) else 0

        def retry() -> None:
            made.append(f"retry {name}")
            absent[name] -= 1

        native = NativeCall(0, (0, 0, 0, 0), body, retry=retry if name.startswith("wait") else None)
        return Work((lambda: made.append(name)) if name == "python" else native, (), ())

    names = ["wait 1", "add 1", "wait 2", "wait 3", "add 2", "send", "python", "wait 4", "add 3"]
    groups = join_calls(HostPlatform(join), [work(name) for name in names])
    joined = [[names[position] for position in group.instructions] for group in groups]
    assert joined == [["wait 1", "add 1"], ["wait 2", "wait 3", "add 2", "send"], ["python"], ["wait 4", "add 3"]]
    assert [group.call() or 0 for group in groups] == [0] * 4
    assert made == [
        *("wait 1", "add 1", "wait 2", "retry wait 2", "wait 2", "retry wait 2"),
        *("wait 2", "wait 3", "retry wait 3", "wait 2", "wait 3", "add 2", "send", "python", "wait 4", "add 3"),
    ]


def test_instructions_without_calls_are_a_group_that_does_nothing_and_need_no_machine_code() -> None:
    (group,) = join_calls(HostPlatform(), [Work((), (), ())] * 2)
    assert (group.call(), group.instructions) == (0, (0,))
