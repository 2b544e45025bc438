"""Sessions in one process: devices in threads, plans that are made once, and errors that name the failed node."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from runner.engine.compile.program import Client, InputSlot, Program
from runner.engine.graph import Graph, Tensor, local_cluster, ops, worker_device
from runner.engine.run import local_session
from runner.engine.run.kernel_table import native_libraries
from runner.engine.run.local_session import LocalSession
from runner.engine.run.rendezvous import LocalRendezvous
from runner.engine.run.session import scalar
from runner.errors import RunnerError
from runner.kernels.registry import Registry
from tests.engine.run.fake_kernels import reference_registry, refusing
from tests.engine.run.test_inputs import Counting
from tests.engine.running import CPU_0, CPU_1, Array, Function, Replaced, client, session

TWO = local_cluster(2)
X, BACK = Tensor("x"), Tensor("back")
VALUE = np.array([1.0, 2.0])


def there_and_back() -> Graph:
    """Return a graph that computes -exp(x): exp is on the second device, x and neg are on the first device."""
    graph = Graph()
    with graph.device(CPU_0):
        x = ops.placeholder(graph, (2,), "float64", name="x")
    with graph.device(CPU_1):
        away = ops.exp(graph, x, name="away")
    with graph.device(CPU_0):
        ops.neg(graph, away, name="back")
    return graph


CLIENT = client("run", [BACK], feeds=[X])


def openmp_threads() -> set[int]:
    """Return the thread counts of the OpenMP libraries, as seen by the calling Python thread."""
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp"}


def test_device_thread_has_as_many_openmp_threads_as_the_caller() -> None:
    native_libraries()  # Load OpenMP; without OpenMP, there is nothing to limit.
    if not openmp_threads():
        pytest.skip("this machine has no OpenMP")
    found = []

    def exp(value: Array) -> Array:
        found.append((threading.current_thread().name, openmp_threads()))
        return np.exp(value)

    kernels = Replaced(reference_registry(), {"exp": exp})
    with threadpool_limits(3, user_api="openmp"), session(there_and_back(), kernels, CLIENT, cluster=TWO) as opened:
        opened.run("run", feeds={str(X): VALUE})
    ((name, threads),) = found
    assert name.startswith("device")
    assert threads == {3}


@pytest.fixture
def rendezvous_made(monkeypatch: pytest.MonkeyPatch) -> list[LocalRendezvous]:
    """Return a list to which each new session adds its rendezvous."""
    made: list[LocalRendezvous] = []

    def make(timeout_s: float) -> LocalRendezvous:
        made.append(LocalRendezvous(timeout_s))
        return made[-1]

    monkeypatch.setattr(local_session, "LocalRendezvous", make)
    return made


def test_each_device_runs_in_a_separate_thread(registry: Registry, rendezvous_made: list[LocalRendezvous]) -> None:
    threads: dict[str, str] = {}

    def noting(op: str, function: Function) -> Function:
        def kernel(value: Array) -> Array:
            threads[op] = threading.current_thread().name
            return function(value)

        return kernel

    kernels = Replaced(registry, {"exp": noting("exp", np.exp), "neg": noting("neg", np.negative)})
    with session(there_and_back(), kernels, CLIENT, cluster=TWO) as opened:
        for step in range(3):
            fetched = opened.run("run", step=step, feeds={"x:0": VALUE})
            np.testing.assert_array_equal(fetched["back:0"], -np.exp(VALUE))
            assert [rendezvous._values for rendezvous in rendezvous_made] == [{}]
        assert len(set(threads.values()) - {threading.current_thread().name}) == 2
    assert not [thread for thread in threading.enumerate() if thread.name in threads.values()]
    graph = Graph()
    ops.neg(graph, ops.placeholder(graph, (2,), "float64", name="x"), name="back")
    with session(graph, kernels, CLIENT) as opened:
        opened.run("run", feeds={"x:0": VALUE})
    assert threads["neg"] == threading.current_thread().name, "a single device runs in the caller's thread"


def test_session_works_after_a_failed_step(registry: Registry, rendezvous_made: list[LocalRendezvous]) -> None:
    exp, neg = refusing(np.exp, lambda x: x[0] < 0), refusing(np.negative, lambda x: x[0] > 10)
    kernels = Replaced(registry, {"exp": exp, "neg": neg})
    with session(there_and_back(), kernels, CLIENT, client("a"), cluster=TWO) as opened:
        for _ in range(2):
            for feed, text in (
                (-VALUE, rf"^node 'away' \(op 'exp'\) on {CPU_1} failed in step 9: "),
                (9 * VALUE, rf"^node 'back' \(op 'neg'\) on {CPU_0} failed in step 9: "),
                (VALUE[:1], "feed x:0: got"),
            ):
                with pytest.raises(RunnerError, match=text):
                    opened.run("run", step=9, feeds={"x:0": feed})
            for feeds in ({}, {"x:0": VALUE, "y:0": VALUE}):
                expected = rf"client 'run' was fed \[{str(sorted(feeds))[1:-1]}\], but takes \['x:0'\]"
                with pytest.raises(RunnerError, match=expected):
                    opened.run("run", feeds=feeds)
            with pytest.raises(RunnerError, match="client 'train': expected one of a, run"):
                opened.run("train")
            with pytest.raises(RunnerError, match="client 'train': expected one of a, run"):
                opened.start_trace(["run", "train"])
            assert opened.run("run", feeds={"x:0": VALUE})["back:0"].tolist() == (-np.exp(VALUE)).tolist()
    assert [rendezvous._values for rendezvous in rendezvous_made] == [{}]


def test_receiver_reports_a_slow_sender(registry: Registry, rendezvous_made: list[LocalRendezvous]) -> None:
    def slow(value: Array) -> Array:
        """Compute exp after the receiver has failed."""
        (rendezvous,) = rendezvous_made
        with rendezvous._condition:
            assert rendezvous._condition.wait_for(lambda: rendezvous.failure is not None, 10)
        return np.exp(value)

    kernels = Replaced(registry, {"exp": slow})
    expected = rf"'away:0->{CPU_0}' of step 0 did not arrive from {CPU_1} within 0\.05 s"
    with (
        session(there_and_back(), kernels, CLIENT, cluster=TWO, timeout_s=0.05) as opened,
        pytest.raises(RunnerError, match=expected),
    ):
        opened.run("run", feeds={"x:0": VALUE})


def test_sent_bytes_count_successful_steps_only(registry: Registry) -> None:
    back = client("back", [BACK], feeds=[X])
    away = client("away", [Tensor("away")], feeds=[X])
    with session(there_and_back(), registry, back, away, cluster=local_cluster(3)) as opened:
        assert opened.sent_bytes() == [0, 0, 0]
        opened.run("back", feeds={"x:0": VALUE})
        assert opened.sent_bytes() == [16, 16, 0]
        opened.run("away", feeds={"x:0": VALUE})
        assert opened.sent_bytes() == [32, 16, 0]
        with pytest.raises(RunnerError):
            opened.run("away", feeds={"x:0": VALUE[:1]})
        assert opened.sent_bytes() == [32, 16, 0]
        assert [plan.sent_bytes for plan in opened.plans("back").values()] == [16, 16]


def test_feed_reaches_all_tensors_of_its_name(registry: Registry) -> None:
    graph = Graph()
    tensors = []
    for k in range(2):
        with graph.device(worker_device(k)):
            tensors.append(ops.placeholder(graph, (), "float64", name=f"rate_{k}"))
    asked = Client("run", {"both": ops.add(graph, *tensors)}, feeds={"rate": tuple(tensors)})
    with session(graph, registry, asked, cluster=TWO) as opened:
        assert opened.run("run", feeds={"rate": scalar(1.5, "float64")})["both"] == 3.0


def shared_inputs() -> Program:
    """Return a program of two devices, each of which reads a share of a batch of five."""
    graph = Graph()
    slots: list[InputSlot] = []
    sums = {}
    for k, (lo, hi) in enumerate([(0, 3), (3, 5)]):
        with graph.device(worker_device(k)):
            for field, dtype in (("x", "float64"), ("y", "int64")):
                tensor = ops.placeholder(graph, (hi - lo,), dtype, name=f"{field}_{k}")
                slots.append(InputSlot(tensor, "train", field, lo, hi))
                sums[f"{field}_{k}"] = ops.reduce_sum(graph, tensor, axes=(0,))
    return Program(graph, {"run": Client("run", sums, inputs=tuple(slots))}, {}, workers=2)


def test_every_share_is_read_once_per_step_and_fed_to_its_device(registry: Registry) -> None:
    source = Counting()
    opened = LocalSession(shared_inputs(), TWO, registry, source)
    fetched = opened.run("run", step=4)
    opened.close()
    assert sorted(source.asked) == [("train", 4, 0, 3), ("train", 4, 3, 5)]
    expected = {"x_0": 120.0 + 0 + 1 + 2, "x_1": 80.0 + 3 + 4, "y_0": 12.0, "y_1": 8.0}
    assert {name: float(value) for name, value in fetched.items()} == expected


def test_run_has_the_number_of_its_spans_after_a_failed_read(registry: Registry) -> None:
    opened = LocalSession(shared_inputs(), TWO, registry, Counting(failing_step=4))
    opened.start_trace(["run"])
    with pytest.raises(OSError, match="the disk is gone"):
        opened.run("run", step=4)
    opened.run("run", step=4)
    timeline = opened.stop_trace()
    opened.close()
    assert {each.number for each in (*timeline.runs, *timeline.spans)} == {0}


def test_session_applies_check_finite_and_reports_libraries_and_peak_memory() -> None:
    kernels = Replaced(reference_registry(), {"exp": lambda value: value * np.nan})
    with (
        session(there_and_back(), kernels, CLIENT, cluster=TWO, check_finite=True) as opened,
        pytest.raises(RunnerError, match=r"node 'away' .* 2 of 2 values are not finite"),
    ):
        opened.run("run", feeds={"x:0": VALUE})
    assert opened.libraries() == {"cpu": ["numpy", "test"]}
    assert opened.peak_memory_bytes()["main"] > 10_000_000
