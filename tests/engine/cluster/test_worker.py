"""Workers on a virtual network: whole steps, delays, traces and shutdown."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engine.cluster.emulation import EmulatedLink
from runner.engine.cluster.launchers import LocalLauncher
from runner.engine.cluster.mailbox import RECEIVE_LIMIT_S, Mailbox
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.encoding import decode_document
from runner.engine.cluster.transport.heartbeat import DEFAULT_LIMITS_S, Progress
from runner.engine.cluster.worker import Worker
from runner.engine.graph.device import worker_device
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.recording import Recorder, from_document
from runner.errors import ClusterError, DataError
from runner.kernels.registry import Registry
from tests.engine.cluster.conftest import Source, Start
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeNetwork
from tests.engine.cluster.virtual_cluster import ADDRESS, EXAMPLES, SETUP, TurnTaking, VirtualCluster
from tests.engine.running import Replaced

RESULT_OF_STEP_2 = [-np.exp(1.0)] * EXAMPLES


def test_step_uses_feeds_inputs_and_variables(cluster: VirtualCluster) -> None:
    cluster.run("init")
    old = np.zeros(EXAMPLES)
    kept = []
    for step in range(3):
        fetched = cluster.run("run", step, {"rate": 0.5})
        new = -np.exp(np.full(EXAMPLES, 0.5 * step))
        for name, value in {"old": old, "new": new, "away": -new}.items():
            np.testing.assert_array_equal(fetched[name], value)
        old = new
        kept.append(fetched["new"])
    assert kept[0].tolist() == [-1.0] * EXAMPLES, "fetched values are copies"


def test_tensor_may_overtake_the_run_message(fed: VirtualCluster) -> None:
    fed.send(messages.Run("run", 2), ["worker-0"])
    assert fed.endpoint.receive(5.0) is None
    assert [len(fed.mailboxes[worker]._tensors) for worker in fed.workers] == [0, 2]
    assert fed.progress["worker-0"].now == messages.Heartbeat(messages.STEP, 2)
    assert fed.progress["worker-1"].now == messages.Heartbeat(messages.IDLE, 0)
    fed.send(messages.Run("run", 2), ["worker-1"])
    assert fed.finish("run", 2)["new"].tolist() == RESULT_OF_STEP_2
    assert fed.progress["worker-0"].now == messages.Heartbeat(messages.IDLE, 2)


def test_emulated_link_delays_but_does_not_change_values(start: Start) -> None:
    with start() as cluster:
        cluster.set_up(link=EmulatedLink(latency_s=2.0))
        cluster.run("init")
        begun = cluster.network.clock.now
        fetched = cluster.run("run", 2, {"rate": 0.5})
        assert cluster.network.clock.now - begun == pytest.approx(4.0)
    assert fetched["new"].tolist() == RESULT_OF_STEP_2


def test_slow_worker_begins_late_and_reports_its_step(fed: VirtualCluster) -> None:
    begun = fed.network.clock.now
    fed.send(messages.Run("run", 2, delay_s=3.0), ["worker-1"])
    fed.send(messages.Run("run", 2), ["worker-0"])
    assert fed.endpoint.receive(2.0) is None
    assert fed.progress["worker-1"].now == messages.Heartbeat(messages.STEP, 2)
    assert fed.finish("run", 2)["new"].tolist() == RESULT_OF_STEP_2
    assert fed.network.clock.now - begun == pytest.approx(3.0)


@pytest.mark.parametrize(("delay_s", "code"), [(0.0, 0), (100.0, 130)])
def test_shutdown_ends_a_delay_and_a_wait_for_a_tensor(fed: VirtualCluster, delay_s: float, code: int) -> None:
    fed.send(messages.Run("run", 2, delay_s=delay_s), ["worker-0"])
    fed.send(messages.Shutdown(code, "a reason" if code else ""))
    fed.answers(messages.Bye)
    fed.wait_for_ends()
    assert fed.network.clock.now < 90.0
    assert fed.ended == {"worker-0": code, "worker-1": code}


def test_a_worker_connects_only_to_receivers_in_its_plans(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without a plan may be set up after another worker has ended."""
    connected: list[tuple[str, str]] = []
    connect = TurnTaking.connect

    def noted(endpoint: TurnTaking, peer: str, address: str = "") -> None:
        if messages.MASTER not in (peer, endpoint.name):
            connected.append((endpoint.name, peer))
        connect(endpoint, peer, address)

    monkeypatch.setattr(TurnTaking, "connect", noted)
    with start() as cluster:
        cluster.set_up()
        for worker in cluster.workers:
            cluster.send(messages.Shutdown(), [worker])
            cluster.answers(messages.Bye, [worker])
        assert connected == []
    with start() as cluster:
        cluster.set_up()
        cluster.run("init")
        cluster.run("run", 2, {"rate": 0.5})
        cluster.shut_down()
    assert sorted(connected) == [("worker-0", "worker-1"), ("worker-1", "worker-0")]


def test_worker_sends_its_spans_and_stops_recording(cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[object] = []
    record = DeviceExecutor.record

    def noted(executor: DeviceExecutor, recorder: Recorder | None, plan: int = 0) -> None:
        chosen.append(recorder)
        record(executor, recorder, plan)

    monkeypatch.setattr(DeviceExecutor, "record", noted)
    cluster.run("init")
    cluster.load("run")
    cluster.send(messages.StartTrace(), ["worker-1"], ["run"])
    for step in range(2):
        cluster.run("run", step, {"rate": 0.5})
    cluster.send(messages.StopTrace(), ["worker-1"])
    received = cluster.receive()
    assert (received.source, received.message) == ("worker-1", messages.Traced())
    spans = from_document(decode_document(received.frames[0]), "worker-1")
    assert [span.kind for span in spans] == ["input", *["wait", "receive"] * 2, *["compute"] * 2, "send"] * 2
    assert [(span.plan, span.number, span.step) for span in spans] == [(0, 0, 0)] * 8 + [(0, 1, 1)] * 8
    assert [type(each) for each in chosen] == [Recorder, type(None)]
    assert cluster.progress["worker-1"].now == messages.Heartbeat(messages.IDLE, 0)


def test_shutdown_ends_workers_and_closes_their_sources(start: Start) -> None:
    sources: list[Source] = []

    def make_source(description: Mapping[str, Any]) -> Source:
        sources.append(Source())
        return sources[-1]

    with start(make_source) as cluster:
        cluster.set_up()
        cluster.shut_down()
        assert cluster.ended == {"worker-0": 0, "worker-1": 0}
    assert [source.closed for source in sources] == [True, True]


def test_worker_tries_to_connect_for_longer_than_its_master_waits() -> None:
    """When a suspended master continues, its time limits start again, so workers must wait longer than these limits."""
    assert max(LocalLauncher(Path(), 1).join_s, DEFAULT_LIMITS_S["setup"]) < RECEIVE_LIMIT_S


def expect_failure(cluster: VirtualCluster, worker: str, kind: str, code: int, text: str) -> None:
    """Expect that ``worker`` reports an error of class ``kind`` with ``text`` and ends with exit code ``code``."""
    failed = cluster.answers(messages.Failed, [worker])[worker]
    assert failed.error == kind
    assert text in failed.text
    cluster.wait_for_ends([worker])
    assert cluster.ended[worker] == code


def step(cluster: VirtualCluster, number: int, *workers: str) -> None:
    """Initialize the variables, then begin a step on the given workers, by default on all."""
    cluster.run("init")
    cluster.feed("run", {"rate": 1.0})
    cluster.send(messages.Run("run", number), workers or None)


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


DEFECT = ZeroDivisionError("a defect")


@pytest.mark.parametrize(
    ("error", "kind", "text", "ended"),
    [
        (DataError("no such images"), "DataError", "no such images", 3),
        (MemoryError(), "ResourceError", "out of memory: an allocation fail", 4),
        (DEFECT, "ZeroDivisionError", "a defect", DEFECT),
    ],
)
def test_error_of_a_source_keeps_its_class(start: Start, error: Exception, kind: str, text: str, ended: object) -> None:
    def make_source(description: Mapping[str, Any]) -> Source:
        raise error

    with start(make_source) as cluster:
        cluster.set_up()
        for failed in cluster.answers(messages.Failed).values():
            assert (failed.error, failed.text[:33]) == (kind, text)
        cluster.wait_for_ends()
        assert cluster.ended == {"worker-0": ended, "worker-1": ended}


def test_source_is_closed_after_a_failure(start: Start) -> None:
    source = Source()
    with start(lambda description: source) as cluster:
        cluster.set_up()
        cluster.send(messages.Run("ghost", 0), ["worker-0"])
        expect_failure(
            cluster, "worker-0", "SecurityError", 8, "step 0 refused: plan 'ghost' is not loaded; loaded: none"
        )
    assert source.closed


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (ClusterError("the master does not listen"), []),
        (ZeroDivisionError("token=hunter2"), ["ZeroDivisionError: token=[redacted]"]),
    ],
)
def test_worker_ends_if_its_heartbeat_thread_has_ended(registry: Registry, error: Exception, sent: list[str]) -> None:
    """sent: the last line of a traceback that the master receives."""
    network = FakeNetwork()
    master, own = (network.endpoint(identity(name), peers=1) for name in (messages.MASTER, "worker-0"))
    own.connect(messages.MASTER)
    worker = Worker(own, Mailbox(own), ADDRESS, ["worker-0"], lambda description: Source(), registry, Progress())

    def lost() -> None:
        raise error

    with pytest.raises(type(error)) if sent else nullcontext():
        assert worker.serve(lost) == ClusterError.exit_code
    received = [each.message for _ in range(2) if (each := master.receive(0))]
    assert [type(message) for message in received] == [messages.Hello, messages.Failed]
    assert [worker.lines.get().splitlines()[-1] for _ in range(worker.lines.qsize())] == sent


def test_worker_without_inputs_needs_no_source(start: Start) -> None:
    def make_source(description: Mapping[str, Any]) -> Source:
        raise AssertionError("a source was made")

    with start(make_source) as cluster:
        cluster.greet()
        cluster.send(messages.Setup(), None, {**SETUP, "source": None})
        step(cluster, 0, "worker-0")
        expect_failure(cluster, "worker-0", "RunnerError", 1, "but the session has no input source")


@pytest.mark.parametrize(
    ("message", "document", "text"),
    [
        (messages.Setup(), None, "setup refused: setup: None, expected a map"),
        (messages.Load("run"), {}, "plan 'run' refused: expected each plan once, after setup"),
    ],
)
def test_violation_before_setup_is_fatal(start: Start, message: messages.Message, document: object, text: str) -> None:
    with start() as cluster:
        cluster.greet()
        cluster.send(message, ["worker-0"], document)
        expect_failure(cluster, "worker-0", "SecurityError", 8, text)


Break = Callable[[VirtualCluster], object]
WORKER_0 = ["worker-0"]
STRAY = messages.TensorsReady("run", 0, ("key",))


def send(message: messages.Message, *documents: object) -> Break:
    """Return a function that sends a message of the master to worker 0."""
    return lambda cluster: cluster.send(message, WORKER_0, *documents)


def stray(message: messages.Message) -> Break:
    """Return a function that sends a message of worker 1 to worker 0."""
    return lambda cluster: cluster.endpoints["worker-1"].send("worker-0", message)


def load(plan: str, of: str) -> Break:
    """Return a function that sends worker 0 the assignment of worker ``of`` as plan ``plan``."""
    return lambda cluster: send(messages.Load(plan), cluster.load("run").assignments[of].to_document())(cluster)


def run_without_values(cluster: VirtualCluster) -> None:
    cluster.feed("run", {"rate": 1.0})
    cluster.send(messages.Run("run", 0), WORKER_0)


def lose_peer(cluster: VirtualCluster) -> None:
    cluster.network.isolated = "worker-1"
    step(cluster, 0)


def kill_peer(cluster: VirtualCluster) -> None:
    cluster.network.kill("worker-1")
    step(cluster, 0, "worker-0")


def load_during_a_step(cluster: VirtualCluster) -> None:
    step(cluster, 0, "worker-0")
    cluster.send(messages.Load("another"), WORKER_0, {})


def start_two_traces(cluster: VirtualCluster) -> None:
    for _ in range(2):
        cluster.send(messages.StartTrace(), WORKER_0, ["run"])


FAILURES: list[tuple[Break, tuple[str, int], str]] = [
    (run_without_values, ("RunnerError", 1), "'w' has no value"),
    (
        lose_peer,
        ("ClusterError", 7),
        f"step 0: tensor 'away:0->{worker_device(0)}' did not arrive from worker-1 within 600 s",
    ),
    (kill_peer, ("ClusterError", 7), "could not send 'tensors' to worker-1: the peer has ended"),
]
VIOLATIONS: list[tuple[Break, str]] = [
    (send(messages.Setup(), SETUP), "second setup refused: expected one setup"),
    (load("run", "worker-0"), "plan 'run' refused: expected each plan once, after setup"),
    (load("another", "worker-1"), f"plan 'another' refused: for {worker_device(1)}, expected the device of worker-0"),
    (send(messages.Load("rubbish"), {"graph": 3}), "plan refused: plan: missing ['device'"),
    (send(messages.Run("run-2", 4)), "step 4 refused: plan 'run-2' is not loaded; loaded: run"),
    (send(messages.Run("run", 4, count=2)), "2 steps of 'run' refused: expected at most 1"),
    (load_during_a_step, "'load' from master-0: unexpected message during step 0, while waiting for tensor 'away:0->"),
    (stray(messages.Done("run", 0, {})), "'done' from worker-1: unexpected message"),
    (send(messages.StartTrace(), ["run", "run-2"]), "trace of 2 plans refused: plans run-2 are not loaded"),
    (start_two_traces, "trace of 1 plans refused: a trace is being recorded"),
    (send(messages.StopTrace()), "end of a trace refused: no trace is being recorded"),
    (stray(STRAY), "tensor key of plan run, step 0 from worker-1: no loaded plan receives this tensor"),
]


@pytest.mark.parametrize(
    ("break_it", "reported", "text"), [*FAILURES, *((each, ("SecurityError", 8), text) for each, text in VIOLATIONS)]
)
def test_failure_ends_a_worker(cluster: VirtualCluster, break_it: Break, reported: tuple[str, int], text: str) -> None:
    cluster.load("run")
    break_it(cluster)
    expect_failure(cluster, "worker-0", *reported, text)
