"""Workers on a virtual network: whole steps, and the errors that workers report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engine.cluster.links import Link
from runner.engine.cluster.mailbox import Mailbox
from runner.engine.cluster.transport.documents import decode_document
from runner.engine.cluster.transport.heartbeat import Progress
from runner.engine.cluster.transport.heartbeat_monitor import DEFAULT_LIMITS_S
from runner.engine.cluster.transport.in_process import FakeNetwork
from runner.engine.cluster.transport.messages import (
    IDLE,
    STEP,
    Bye,
    Done,
    Failed,
    Heartbeat,
    Hello,
    Load,
    Run,
    Setup,
    Shutdown,
    StartTrace,
    StopTrace,
    TensorReady,
    Traced,
)
from runner.engine.cluster.transport.names import MASTER
from runner.engine.cluster.transport.references import InlineTensor
from runner.engine.cluster.worker import Worker
from runner.engine.cluster.worker_group import _JOIN_S
from runner.engine.cluster.worker_process import WorkerOptions
from runner.engine.graph.device import worker_device
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.recording import Recorder, from_document
from runner.errors import ClusterError, ConfigError, DataError
from runner.kernels.registry import Registry
from tests.engine.cluster.remote_programs import EXAMPLES, there_and_back
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.virtual_cluster import ADDRESS, SETUP, VirtualCluster, virtual_cluster
from tests.engine.running import Replaced

Start = Callable[..., AbstractContextManager[VirtualCluster]]


class Source:
    """Examples of the program there_and_back, all equal to ``x`` + step; records that it was closed."""

    def __init__(self, x: float = 0.0) -> None:
        self.closed = False
        self._x = x

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, Any]:
        return {"x": np.full(hi - lo, self._x + step)}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def start(tmp_path: Path, registry: Registry) -> Start:
    """Start the two workers of there_and_back. source: of each of them."""

    def begin(
        make_source: Callable[[Mapping[str, Any]], Any] = lambda description: Source(), kernels: Registry = registry
    ) -> AbstractContextManager[VirtualCluster]:
        return virtual_cluster(there_and_back(), tmp_path, kernels, make_source)

    return begin


@pytest.fixture
def cluster(start: Start) -> Iterator[VirtualCluster]:
    """The two workers after setup."""
    with start() as cluster:
        cluster.set_up()
        yield cluster


def expect_failure(cluster: VirtualCluster, worker: str, kind: str, code: int, text: str) -> Failed:
    """Expect that the next answer is a failure and that the worker ends with its exit code."""
    failed = cluster.answers(Failed, [worker])[worker]
    assert failed.error == kind
    assert text in failed.text
    cluster.wait_for_ends([worker])
    assert cluster.ended[worker] == code
    return failed


def test_step_uses_feeds_inputs_and_variables(cluster: VirtualCluster) -> None:
    cluster.run("init")
    old = np.zeros(EXAMPLES)
    for step in range(3):
        fetched = cluster.run("run", step, {"rate": 0.5})
        new = -np.exp(np.full(EXAMPLES, 0.5 * step))
        for name, value in {"old": old, "new": new, "away": -new}.items():
            np.testing.assert_array_equal(fetched[name], value)
        old = new


def test_fetched_value_is_a_copy(cluster: VirtualCluster) -> None:
    cluster.run("init")
    first = cluster.run("run", 0, {"rate": 0.5})["new"]
    cluster.run("run", 5, {"rate": 0.5})
    assert first.tolist() == [-1.0] * EXAMPLES


def test_tensor_may_overtake_the_run_message(cluster: VirtualCluster) -> None:
    cluster.run("init")
    cluster.feed("run", {"rate": 0.5})
    cluster.send(Run("run", 2, {}), ["worker-0"])
    assert cluster.endpoint.receive(5.0) is None
    assert [len(cluster.mailboxes[worker].pending) for worker in cluster.workers] == [0, 1]
    assert cluster.progress["worker-0"].now == Heartbeat(STEP, 2)
    assert cluster.progress["worker-1"].now == Heartbeat(IDLE, 0)
    cluster.send(Run("run", 2, {}), ["worker-1"])
    assert cluster.finish("run", 2)["new"].tolist() == [-np.exp(1.0)] * EXAMPLES
    assert cluster.progress["worker-0"].now == Heartbeat(IDLE, 2)


def test_emulated_link_delays_but_does_not_change_values(start: Start) -> None:
    with start() as cluster:
        cluster.set_up(link=Link(latency_s=2.0))
        cluster.run("init")
        begun = cluster.network.clock.now
        fetched = cluster.run("run", 2, {"rate": 0.5})
        assert cluster.network.clock.now - begun == pytest.approx(4.0)
    assert fetched["away"].tolist() == [np.exp(1.0)] * EXAMPLES


def test_slow_worker_begins_late_and_reports_the_step(cluster: VirtualCluster) -> None:
    cluster.run("init")
    cluster.feed("run", {"rate": 0.5})
    begun = cluster.network.clock.now
    cluster.send(Run("run", 2, {}, delay_s=3.0), ["worker-1"])
    cluster.send(Run("run", 2, {}), ["worker-0"])
    assert cluster.endpoint.receive(2.0) is None
    assert cluster.progress["worker-1"].now == Heartbeat(STEP, 2)
    assert cluster.finish("run", 2)["new"].tolist() == [-np.exp(1.0)] * EXAMPLES
    assert cluster.network.clock.now - begun == pytest.approx(3.0)


def test_shutdown_ends_a_delay(cluster: VirtualCluster) -> None:
    cluster.run("init")
    cluster.feed("run", {"rate": 0.5})
    cluster.send(Run("run", 2, {}, delay_s=100.0), ["worker-0"])
    cluster.send(Shutdown())
    cluster.answers(Bye)
    cluster.wait_for_ends()
    assert cluster.network.clock.now < 90.0


def test_finished_step_reports_peak_memory(cluster: VirtualCluster) -> None:
    cluster.load("init")
    cluster.send(Run("init", 0, {}), ["worker-0"])
    assert cluster.answers(Done, ["worker-0"])["worker-0"].stats["peak_memory_bytes"] > 10_000_000


def test_worker_sends_its_spans_and_stops_recording(cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[object] = []
    record = DeviceExecutor.record

    def noted(executor: DeviceExecutor, recorder: Recorder | None, plan: int = 0) -> None:
        chosen.append(recorder)
        record(executor, recorder, plan)

    monkeypatch.setattr(DeviceExecutor, "record", noted)
    cluster.run("init")
    cluster.load("run")
    cluster.send(StartTrace(), ["worker-1"], ["run"])
    for step in range(2):
        cluster.run("run", step, {"rate": 0.5})
    cluster.send(StopTrace(), ["worker-1"])
    received = cluster.receive()
    assert (received.source, received.message) == ("worker-1", Traced())
    spans = from_document(decode_document(received.frames[0]), "worker-1")
    assert [span.kind for span in spans] == ["input", "wait", "receive", "compute", "send"] * 2
    assert [(span.plan, span.number, span.step) for span in spans] == [(0, 0, 0)] * 5 + [(0, 1, 1)] * 5
    assert [type(each) for each in chosen] == [Recorder, type(None)]
    assert cluster.progress["worker-1"].now == Heartbeat(IDLE, 0)


def test_shutdown_ends_a_worker_and_closes_its_source(start: Start) -> None:
    sources: list[Source] = []

    def make_source(description: Mapping[str, Any]) -> Source:
        sources.append(Source())
        return sources[-1]

    with start(make_source) as cluster:
        cluster.set_up()
        cluster.shut_down()
        assert cluster.ended == {"worker-0": 0, "worker-1": 0}
    assert [source.closed for source in sources] == [True, True]


def test_shutdown_ends_a_worker_that_waits_for_a_tensor(cluster: VirtualCluster) -> None:
    cluster.run("init")
    cluster.feed("run", {"rate": 0.5})
    cluster.send(Run("run", 0, {}), ["worker-0"])
    cluster.send(Shutdown(), ["worker-0"])
    cluster.answers(Bye, ["worker-0"])
    cluster.wait_for_ends(["worker-0"])
    assert cluster.ended["worker-0"] == 0


def test_non_finite_value_is_reported_with_class_node_and_step(start: Start) -> None:
    with start(lambda description: Source(x=1e6)) as cluster:
        cluster.set_up(check_finite=True)
        cluster.run("init")
        cluster.feed("run", {"rate": 1.0})
        cluster.send(Run("run", 3, {}))
        expect_failure(cluster, "worker-1", "NumericError", 5, "node 'away' (op 'exp'), output 0: 3 of 3 values")


def test_non_finite_value_is_allowed_without_the_check(start: Start) -> None:
    with start(lambda description: Source(x=1e6)) as cluster:
        cluster.set_up()
        cluster.run("init")
        assert cluster.run("run", 0, {"rate": 1.0})["new"].tolist() == [-np.inf] * EXAMPLES


def test_kernel_failure_is_reported_with_its_node(start: Start, registry: Registry) -> None:
    def failing(value: object) -> object:
        raise FloatingPointError("no bits left")

    with start(kernels=Replaced(registry, {"exp": failing})) as cluster:
        cluster.set_up()
        cluster.run("init")
        cluster.feed("run", {"rate": 1.0})
        cluster.send(Run("run", 3, {}))
        expected = f"node 'away' (op 'exp') on {worker_device(1)} failed in step 3: FloatingPointError: no bits left"
        expect_failure(cluster, "worker-1", "RunnerError", 1, expected)


def test_unassigned_variable_is_reported(cluster: VirtualCluster) -> None:
    cluster.feed("run", {"rate": 1.0})
    cluster.send(Run("run", 0, {}), ["worker-0"])
    expect_failure(cluster, "worker-0", "RunnerError", 1, "variable 'w' has no value yet")


def test_source_error_keeps_its_class(start: Start) -> None:
    def make_source(description: Mapping[str, Any]) -> Source:
        raise DataError("no such images")

    with start(make_source) as cluster:
        cluster.set_up()
        for failed in cluster.answers(Failed).values():
            assert (failed.error, failed.text) == ("DataError", "no such images")


def test_worker_without_memory_fails_as_one_without_resources(start: Start) -> None:
    def make_source(description: Mapping[str, Any]) -> Source:
        raise MemoryError

    with start(make_source) as cluster:
        cluster.set_up()
        failed = cluster.answers(Failed)["worker-0"]
        assert (failed.error, failed.text[:33]) == ("ResourceError", "out of memory: an allocation fail")
        cluster.wait_for_ends()
        assert cluster.ended["worker-0"] == 4


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
        cluster.send(Run("ghost", 0, {}), ["worker-0"])
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


def test_lost_peer_is_reported_after_the_limit(cluster: VirtualCluster) -> None:
    cluster.run("init")
    cluster.feed("run", {"rate": 1.0})
    cluster.network.partition(["worker-1"])
    cluster.send(Run("run", 0, {}))
    text = f"step 0: 'away:0->{worker_device(0)}' did not arrive from worker-1 within 600 s"
    expect_failure(cluster, "worker-0", "ClusterError", 7, text)


def test_unreachable_peer_is_reported(cluster: VirtualCluster) -> None:
    cluster.run("init")
    cluster.feed("run", {"rate": 1.0})
    cluster.network.kill("worker-1")
    cluster.send(Run("run", 0, {}), ["worker-0"])
    expect_failure(cluster, "worker-0", "ClusterError", 7, "could not send 'tensor' to worker-1: it is gone")


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"source": {}},
        {"source": {}, "check_finite": True},
        {**SETUP, "more": 1},
        {**SETUP, "check_finite": 1},
        {**SETUP, "source": "digits"},
        {**SETUP, "gpus": [0]},
        {**SETUP, "gpus": {"worker-0": -1}},
        {**SETUP, "gpus": {"worker-0": True}},
        {**SETUP, "gpus": {"worker-0": 2**62}},
    ],
)
def test_malformed_setup_is_refused(start: Start, document: object) -> None:
    with start() as cluster:
        cluster.greet()
        cluster.send(Setup(), ["worker-0"], document)
        expect_failure(cluster, "worker-0", "SecurityError", 8, "setup refused: expected a map of 'source'")


def test_setup_with_malformed_gpu_options_is_refused(start: Start) -> None:
    with start() as cluster:
        cluster.greet()
        cluster.send(Setup(), ["worker-0"], {**SETUP, "use": {"tf32": None}})
        expect_failure(cluster, "worker-0", "SecurityError", 8, "setup refused: use of GPUs {'tf32': None}: expected")


def test_setup_with_a_malformed_link_is_refused(start: Start) -> None:
    with start() as cluster:
        cluster.greet()
        link = {"latency_s": -1.0, "bytes_per_s": None}
        cluster.send(Setup(), ["worker-0"], {**SETUP, "link": link})
        expect_failure(cluster, "worker-0", "SecurityError", 8, "setup refused: latency_s -1.0: expected 0 to 200")


def test_worker_without_inputs_needs_no_source(start: Start) -> None:
    def make_source(description: Mapping[str, Any]) -> Source:
        raise AssertionError("a source was made")

    with start(make_source) as cluster:
        cluster.greet()
        cluster.send(Setup(), None, {**SETUP, "source": None})
        cluster.run("init")
        cluster.feed("run", {"rate": 1.0})
        cluster.send(Run("run", 0, {}), ["worker-0"])
        expect_failure(cluster, "worker-0", "RunnerError", 1, "but the session has no input source")


def again(cluster: VirtualCluster) -> None:
    cluster.send(Setup(), ["worker-0"], {**SETUP, "source": None})


def load_again(cluster: VirtualCluster) -> None:
    assignment = cluster.load("run").assignments["worker-0"]
    cluster.send(Load("run"), ["worker-0"], assignment.to_document())


def load_for_another(cluster: VirtualCluster) -> None:
    assignment = cluster.load("run").assignments["worker-1"]
    cluster.send(Load("another"), ["worker-0"], assignment.to_document())


def load_rubbish(cluster: VirtualCluster) -> None:
    cluster.send(Load("rubbish"), ["worker-0"], {"graph": 3})


def run_another_plan(cluster: VirtualCluster) -> None:
    cluster.load("run")
    cluster.send(Run("run-2", 4, {}), ["worker-0"])


def run_within_a_step(cluster: VirtualCluster) -> None:
    cluster.run("init")
    cluster.feed("run", {"rate": 1.0})
    cluster.send(Run("run", 0, {}), ["worker-0"])
    cluster.send(Run("run", 1, {}), ["worker-0"])


def send_done_to_a_worker(cluster: VirtualCluster) -> None:
    cluster.load("run")
    cluster.endpoints["worker-1"].send("worker-0", Done("run", 0, {}, {}))


def trace_another_plan(cluster: VirtualCluster) -> None:
    cluster.load("run")
    cluster.send(StartTrace(), ["worker-0"], ["run", "run-2"])


def trace_twice(cluster: VirtualCluster) -> None:
    cluster.load("run")
    cluster.send(StartTrace(), ["worker-0"], ["run"])
    cluster.send(StartTrace(), ["worker-0"], ["run"])


def stop_without_a_trace(cluster: VirtualCluster) -> None:
    cluster.load("run")
    cluster.send(StopTrace(), ["worker-0"])


def send_an_unexpected_tensor(cluster: VirtualCluster) -> None:
    cluster.load("run")
    cluster.endpoints["worker-1"].send("worker-0", TensorReady("run", 0, "key", InlineTensor("uint8", (1,), 0)), [b"x"])


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (again, "setup refused: expected once, received again"),
        (load_again, "plan 'run' refused: expected a new one, after setup"),
        (load_for_another, f"plan 'another' refused: for {worker_device(1)}, expected the device of worker-0"),
        (load_rubbish, "plan refused: expected a map with the fields arenas, device"),
        (run_another_plan, "step 4 of plan 'run-2' refused: loaded are run"),
        (run_within_a_step, "'run' from master-0 arrived during step 0, while 'away:0->"),
        (send_done_to_a_worker, "'done' from worker-1: unexpected message"),
        (trace_another_plan, "trace of 2 plans refused: plans run-2 are not loaded"),
        (trace_twice, "trace of 1 plans refused: a trace is being recorded"),
        (stop_without_a_trace, "end of a trace refused: no trace is being recorded"),
        (send_an_unexpected_tensor, "tensor key of plan run, step 0 from worker-1: no loaded plan receives it"),
    ],
)
def test_protocol_violation_ends_the_worker(
    cluster: VirtualCluster, break_it: Callable[[VirtualCluster], None], text: str
) -> None:
    break_it(cluster)
    expect_failure(cluster, "worker-0", "SecurityError", 8, text)


def test_plan_before_setup_is_refused(start: Start) -> None:
    with start() as cluster:
        cluster.greet()
        cluster.send(Load("run"), ["worker-0"], {})
        expect_failure(cluster, "worker-0", "SecurityError", 8, "plan 'run' refused: expected a new one, after setup")


def test_missing_arena_is_reported(cluster: VirtualCluster) -> None:
    plan = cluster.load("run")
    cluster.send(Load("again"), ["worker-0"], plan.assignments["worker-0"].to_document())
    expect_failure(cluster, "worker-0", "SecurityError", 8, "cannot open")


@pytest.mark.parametrize("role", ["master", "worker_heartbeat", "chief"])
def test_role_without_a_device_is_refused(role: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^--role '{role}': expected one of worker, ps$"):
        WorkerOptions("ipc:///nowhere", role, 0, tmp_path / "token", "run", 1, 1, 0, 16)


def test_worker_connects_longer_than_its_master_waits(tmp_path: Path) -> None:
    """A stopped master restarts its time limits; its workers must wait longer."""
    limits = WorkerOptions("ipc:///nowhere", "worker", 0, tmp_path / "token", "run", 1, 2, 1, 16).limits
    assert (limits.peers, limits.servers, limits.queued_messages) == (2, 1, 16)
    assert limits.connect_timeout_s > max(_JOIN_S, DEFAULT_LIMITS_S["setup"])
