"""Workers on a virtual network: the errors that they report, and their exit codes."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from runner.engine.cluster.mailbox import Mailbox
from runner.engine.cluster.transport.heartbeat import Progress
from runner.engine.cluster.transport.messages import (
    Done,
    Failed,
    Hello,
    Load,
    Run,
    Setup,
    StartTrace,
    StopTrace,
    TensorReady,
)
from runner.engine.cluster.transport.names import MASTER
from runner.engine.cluster.transport.references import ArenaTensor
from runner.engine.cluster.worker import Worker
from runner.engine.graph.device import worker_device
from runner.errors import ClusterError, DataError
from runner.kernels.registry import Registry
from tests.engine.cluster.conftest import Source, Start
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeNetwork
from tests.engine.cluster.virtual_cluster import ADDRESS, SETUP, VirtualCluster
from tests.engine.running import Replaced


def expect_failure(cluster: VirtualCluster, worker: str, kind: str, code: int, text: str) -> None:
    """Expect that the next answer is a failure and that the worker ends with its exit code."""
    failed = cluster.answers(Failed, [worker])[worker]
    assert failed.error == kind
    assert text in failed.text
    cluster.wait_for_ends([worker])
    assert cluster.ended[worker] == code


def step(cluster: VirtualCluster, number: int, *workers: str, rate: float = 1.0) -> None:
    """Begin a step, by default on all workers."""
    cluster.run("init")
    cluster.feed("run", {"rate": rate})
    cluster.send(Run("run", number), workers or None)


def test_non_finite_value_is_reported_with_class_node_and_step(start: Start) -> None:
    with start(lambda description: Source(x=1e6)) as cluster:
        cluster.set_up(check_finite=True)
        step(cluster, 3)
        expect_failure(cluster, "worker-1", "NumericError", 5, "node 'away' (op 'exp'), output 0: 3 of 3 values")


def test_kernel_failure_is_reported_with_its_node(start: Start, registry: Registry) -> None:
    def failing(value: object) -> object:
        raise FloatingPointError("no bits left")

    with start(kernels=Replaced(registry, {"exp": failing})) as cluster:
        cluster.set_up()
        step(cluster, 3)
        expected = f"node 'away' (op 'exp') on {worker_device(1)} failed in step 3: FloatingPointError: no bits left"
        expect_failure(cluster, "worker-1", "RunnerError", 1, expected)


@pytest.mark.parametrize(
    ("error", "kind", "text", "code"),
    [
        (DataError("no such images"), "DataError", "no such images", 3),
        (MemoryError(), "ResourceError", "out of memory: an allocation fail", 4),
    ],
)
def test_error_of_a_source_keeps_its_class(start: Start, error: Exception, kind: str, text: str, code: int) -> None:
    def make_source(description: Mapping[str, Any]) -> Source:
        raise error

    with start(make_source) as cluster:
        cluster.set_up()
        for failed in cluster.answers(Failed).values():
            assert (failed.error, failed.text[:33]) == (kind, text)
        cluster.wait_for_ends()
        assert cluster.ended == {"worker-0": code, "worker-1": code}


def test_defect_is_reported_and_raised(start: Start) -> None:
    def make_source(description: Mapping[str, Any]) -> Source:
        raise ZeroDivisionError("a defect")

    with start(make_source) as cluster:
        cluster.set_up()
        failed = cluster.answers(Failed)["worker-0"]
        assert (failed.error, failed.text) == ("ZeroDivisionError", "a defect")
        assert 'raise ZeroDivisionError("a defect")' in failed.traceback
        cluster.wait_for_ends()
        assert isinstance(cluster.ended["worker-0"], ZeroDivisionError)


def test_source_is_closed_after_a_failure(start: Start) -> None:
    source = Source()
    with start(lambda description: source) as cluster:
        cluster.set_up()
        cluster.send(Run("ghost", 0), ["worker-0"])
        expect_failure(cluster, "worker-0", "SecurityError", 8, "step 0 of plan 'ghost' refused: loaded are none")
    assert source.closed


def test_ended_heartbeat_thread_ends_the_worker(registry: Registry) -> None:
    network = FakeNetwork()
    master, own = (network.endpoint(identity(name), peers=1) for name in (MASTER, "worker-0"))
    own.connect(MASTER)
    worker = Worker(own, Mailbox(own), ADDRESS, ["worker-0"], lambda description: Source(), registry, Progress())

    def lost() -> None:
        raise ClusterError("the master does not listen")

    assert worker.serve(lost) == ClusterError.exit_code
    messages = [received.message for _ in range(2) if (received := master.receive(0))]
    assert [type(message) for message in messages] == [Hello, Failed]


def test_worker_without_inputs_needs_no_source(start: Start) -> None:
    def make_source(description: Mapping[str, Any]) -> Source:
        raise AssertionError("a source was made")

    with start(make_source) as cluster:
        cluster.greet()
        cluster.send(Setup(), None, {**SETUP, "source": None})
        step(cluster, 0, "worker-0")
        expect_failure(cluster, "worker-0", "RunnerError", 1, "but the session has no input source")


@pytest.mark.parametrize(
    ("document", "text"),
    [(None, "setup refused: setup: None, expected a map"), ({**SETUP, "check_finite": 1}, "setup.check_finite: 1")],
)
def test_malformed_setup_is_refused(start: Start, document: object, text: str) -> None:
    with start() as cluster:
        cluster.greet()
        cluster.send(Setup(), ["worker-0"], document)
        expect_failure(cluster, "worker-0", "SecurityError", 8, text)


def test_plan_before_setup_is_refused(start: Start) -> None:
    with start() as cluster:
        cluster.greet()
        cluster.send(Load("run"), ["worker-0"], {})
        expect_failure(cluster, "worker-0", "SecurityError", 8, "plan 'run' refused: expected a new one, after setup")


Break = Callable[[VirtualCluster], object]
WORKER_0 = ["worker-0"]
STRAY = TensorReady("run", 0, "key", ArenaTensor("uint8", (1,), "arena", 0, 1, 1))


def load(cluster: VirtualCluster, plan: str, of: str) -> None:
    """Load the client, and its assignment for one of the workers once more in worker 0."""
    document = cluster.load("run").assignments[of].to_document()
    cluster.send(Load(plan), WORKER_0, document)


def lose_peer(cluster: VirtualCluster) -> None:
    cluster.load("run")
    cluster.network.partition(["worker-1"])
    step(cluster, 0)


def kill_peer(cluster: VirtualCluster) -> None:
    cluster.load("run")
    cluster.network.kill("worker-1")
    step(cluster, 0, "worker-0")


FAILURES: list[tuple[Break, tuple[str, int], str]] = [
    (lambda c: c.feed("run", {"rate": 1.0}) or c.send(Run("run", 0), WORKER_0), ("RunnerError", 1), "'w' has no value"),
    (lose_peer, ("ClusterError", 7), f"step 0: 'away:0->{worker_device(0)}' did not arrive from worker-1 within 600 s"),
    (kill_peer, ("ClusterError", 7), "could not send 'tensor' to worker-1: it is gone"),
]
VIOLATIONS: list[tuple[Break, str]] = [
    (lambda c: c.send(Setup(), WORKER_0, SETUP), "setup refused: expected once, received again"),
    (lambda c: load(c, "run", "worker-0"), "plan 'run' refused: expected a new one, after setup"),
    (
        lambda c: load(c, "another", "worker-1"),
        f"plan 'another' refused: for {worker_device(1)}, expected the device of worker-0",
    ),
    (lambda c: load(c, "again", "worker-0"), "cannot open"),
    (lambda c: c.send(Load("rubbish"), WORKER_0, {"graph": 3}), "plan refused: plan: missing ['device'"),
    (lambda c: c.send(Run("run-2", 4), WORKER_0), "step 4 of plan 'run-2' refused: loaded are run"),
    (
        lambda c: step(c, 0, "worker-0") or c.send(Run("run", 1), WORKER_0),
        "'run' from master-0 arrived during step 0, while 'away:0->",
    ),
    (
        lambda c: c.endpoints["worker-1"].send("worker-0", Done("run", 0, {})),
        "'done' from worker-1: unexpected message",
    ),
    (
        lambda c: c.send(StartTrace(), WORKER_0, ["run", "run-2"]),
        "trace of 2 plans refused: plans run-2 are not loaded",
    ),
    (
        lambda c: [c.send(StartTrace(), WORKER_0, ["run"]) for _ in range(2)],
        "trace of 1 plans refused: a trace is being recorded",
    ),
    (lambda c: c.send(StopTrace(), WORKER_0), "end of a trace refused: no trace is being recorded"),
    (
        lambda c: c.endpoints["worker-1"].send("worker-0", STRAY),
        "tensor key of plan run, step 0 from worker-1: no loaded plan receives it",
    ),
]


@pytest.mark.parametrize(
    ("break_it", "reported", "text"), [*FAILURES, *((each, ("SecurityError", 8), text) for each, text in VIOLATIONS)]
)
def test_failure_and_violation_end_the_worker(
    cluster: VirtualCluster, break_it: Break, reported: tuple[str, int], text: str
) -> None:
    cluster.load("run")
    break_it(cluster)
    expect_failure(cluster, "worker-0", *reported, text)
