import threading
from pathlib import Path
from queue import Queue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.transport.heartbeat import HeartbeatMonitor, HeartbeatThread, Progress, Reason
from runner.engine.cluster.transport.messages import MASTER, Bye, Heartbeat, Hello, Log
from runner.engine.cluster.transport.private_directory import inbox_address
from runner.engine.cluster.transport.zmq_endpoint import Outbox, ZmqEndpoint
from runner.engine.cluster.transport.zmq_sockets import Context
from runner.errors import ClusterError
from tests.engine.cluster.transport.conftest import LIMITS, identity
from tests.engine.cluster.transport.fake_network import FakeClock, FakeNetwork, Faults


class RecordingOutbox:
    """An outbox that records messages and lets a test wait for them."""

    def __init__(self, has_room: bool) -> None:
        self.beats: list[Heartbeat] = []
        self.sent: list[Log | Bye] = []
        self.thread = threading.get_ident()
        self.closed = False
        self._has_room = has_room
        self._beat = threading.Semaphore(0)

    def offer(self, peer: str, message: Heartbeat) -> bool:
        assert peer == MASTER
        self.beats.append(message)
        self._beat.release()
        return self._has_room

    def send(self, peer: str, message: Log | Bye) -> None:
        assert peer == MASTER
        self.sent.append(message)

    def close(self) -> None:
        self.closed = True

    def wait_for_beats(self, count: int) -> None:
        for _ in range(count):
            assert self._beat.acquire(timeout=5.0), "no heartbeat was sent"


@pytest.mark.parametrize("has_room", [True, False])
def test_thread_opens_its_outbox_sends_progress_and_closes_the_outbox(has_room: bool) -> None:
    made: Queue[RecordingOutbox] = Queue()

    def open_outbox() -> RecordingOutbox:
        made.put(outbox := RecordingOutbox(has_room))
        return outbox

    progress = Progress()
    with HeartbeatThread(open_outbox, progress, interval_s=0.001) as thread:
        outbox = made.get(timeout=5.0)
        outbox.wait_for_beats(1)
        progress.enter("step", 12)
        outbox.wait_for_beats(5)
        thread.check()
    assert outbox.beats[0] == Heartbeat("setup", 0)
    assert outbox.beats[-1] == Heartbeat("step", 12)
    assert outbox.closed
    assert outbox.thread != threading.get_ident()
    assert made.empty()


def test_lines_of_the_log_wait_for_room_in_the_queue() -> None:
    sent: list[str] = []
    refused, done = iter([True, False, True, True]), threading.Event()

    class Full(RecordingOutbox):
        def offer(self, peer: str, message: Heartbeat | Log) -> bool:
            if isinstance(message, Heartbeat):
                return True
            if next(refused, False):
                return False
            sent.append(message.lines)
            if len(sent) == 3:
                done.set()
            return True

    thread = HeartbeatThread(lambda: Full(True), Progress(), interval_s=0.001)
    for line in "abc":
        thread.lines.put(line)
    with thread:
        assert done.wait(5.0)
    assert sent == ["a", "b", "c"]


def test_the_last_lines_of_the_log_come_before_the_end_of_the_connection() -> None:
    outbox = RecordingOutbox(has_room=True)
    with HeartbeatThread(lambda: outbox, Progress(), interval_s=60.0) as thread:
        outbox.wait_for_beats(1)
        for line in "ab":
            thread.lines.put(line)
    assert outbox.sent == [Log("a"), Log("b"), Bye()]


def test_error_of_the_thread_is_raised_in_the_main_loop() -> None:
    failed = threading.Event()

    def open_outbox() -> RecordingOutbox:
        failed.set()
        raise ClusterError("no process listens")

    with HeartbeatThread(open_outbox, Progress()) as thread:
        assert failed.wait(5.0)
    with pytest.raises(ClusterError, match="no process listens"):
        thread.check()


def test_heartbeats_use_a_separate_connection(context: Context, directory: Path) -> None:
    address = inbox_address(directory, MASTER)

    def open_outbox() -> Outbox:
        outbox = Outbox(context, identity("worker_heartbeat-3"), LIMITS)
        outbox.connect(MASTER, address)
        return outbox

    with (
        ZmqEndpoint(context, identity(MASTER), address, LIMITS) as master,
        HeartbeatThread(open_outbox, Progress(), interval_s=0.01),
    ):
        received = [master.receive(5.0) for _ in range(3)]
    assert [item and item.source for item in received] == ["worker_heartbeat-3"] * 3
    assert [item and type(item.message) for item in received] == [Hello, Heartbeat, Heartbeat]


def test_skipped_heartbeats_use_no_sequence_numbers(context: Context, directory: Path) -> None:
    address = inbox_address(directory, MASTER)
    tight = LIMITS.__class__(peers=1, queued_messages=2)
    with ZmqEndpoint(context, identity(MASTER), address, tight) as master:
        outbox = Outbox(context, identity("worker_heartbeat-0"), tight)
        outbox.connect(MASTER, address)
        offered = [outbox.offer(MASTER, Heartbeat("step", step)) for step in range(10_000)]
        assert not all(offered)
        while master.receive(0.05) is not None:
            pass  # receive would raise if a sequence number were missing.
        assert outbox.offer(MASTER, Heartbeat("step", 0))
        assert master.receive(5.0) is not None
        outbox.close()


LIMITS_S = {"setup": 60.0, "load": 30.0, "step": 5.0, "save": 100.0}


@pytest.fixture
def monitor() -> HeartbeatMonitor:
    monitor = HeartbeatMonitor(LIMITS_S, silence_s=2.0)
    monitor.watch("worker-0", now=0.0)
    return monitor


def beat(monitor: HeartbeatMonitor, section: str, step: int, until: float, clock: FakeClock) -> None:
    """Send a heartbeat every half second until the clock shows ``until``."""
    while clock.now < until:
        clock.advance(0.5)
        monitor.heartbeat("worker-0", section, step, clock.now)


def test_limit_of_setup_applies_before_the_first_heartbeat(monitor: HeartbeatMonitor) -> None:
    assert monitor.tick(60.0) == []
    (verdict,) = monitor.tick(60.1)
    assert verdict.reason is Reason.STUCK
    assert (verdict.section, verdict.since, verdict.limit_s) == ("setup", 0.0, 60.0)


def test_silent_worker_is_reported_in_any_section(monitor: HeartbeatMonitor) -> None:
    monitor.heartbeat("worker-0", "idle", 7, now=1.0)
    assert monitor.tick(3.0) == []
    (verdict,) = monitor.tick(3.5)
    assert verdict.reason is Reason.SILENT
    assert str(verdict) == (
        "worker-0 is silent: no heartbeat for 2.5 s (limit 2 s); the last one came from section 'idle' at step 7"
    )


def ticks(monitor: HeartbeatMonitor, begin: float, end: float, *, stopped: bool) -> list[Reason]:
    """Tick four times a second; return the reasons of all verdicts."""
    times = [begin + k / 4 for k in range(int(4 * (end - begin)))]
    return [each.reason for now in times for each in monitor.tick(now, lambda worker: stopped)]


@pytest.fixture
def patient() -> HeartbeatMonitor:
    monitor = HeartbeatMonitor({}, silence_s=10.0)
    monitor.watch("worker-0", now=0.0)
    monitor.heartbeat("worker-0", "step", 7, now=1.0)
    return monitor


def test_stopped_process_is_reported_before_a_silent_one(patient: HeartbeatMonitor) -> None:
    assert ticks(patient, 0.0, 10.0, stopped=False) == []
    assert patient.silence_s("worker-0", 3.5) == 2.5
    patient.heartbeat("worker-0", "step", 7, now=10.0)
    assert ticks(patient, 10.0, 11.75, stopped=True) == []
    assert ticks(patient, 11.75, 12.0, stopped=True) == [Reason.STOPPED]


def test_process_that_was_stopped_like_its_master_gets_time_to_continue(patient: HeartbeatMonitor) -> None:
    assert ticks(patient, 5.0, 6.75, stopped=True) == []
    assert ticks(patient, 6.75, 7.0, stopped=True) == [Reason.STOPPED]


@pytest.mark.parametrize(("section", "limit_s"), LIMITS_S.items())
def test_each_section_has_its_own_time_limit(monitor: HeartbeatMonitor, section: str, limit_s: float) -> None:
    clock = FakeClock()
    monitor.heartbeat("worker-0", section, 3, now=0.0)
    beat(monitor, section, 3, until=limit_s, clock=clock)
    assert monitor.tick(clock.now) == []
    beat(monitor, section, 3, until=limit_s + 1, clock=clock)
    (verdict,) = monitor.tick(clock.now)
    assert verdict.reason is Reason.STUCK
    assert verdict.since == 0.0
    assert f"worker-0 is stuck: no progress in section '{section}' at step 3" in str(verdict)


def test_new_step_or_section_is_progress(monitor: HeartbeatMonitor) -> None:
    clock = FakeClock()
    for step in range(10):
        beat(monitor, "step", step, until=clock.now + 4.0, clock=clock)
        assert monitor.tick(clock.now) == []
    beat(monitor, "save", 9, until=clock.now + 50.0, clock=clock)
    assert monitor.tick(clock.now) == []


def test_idle_section_has_no_time_limit(monitor: HeartbeatMonitor) -> None:
    clock = FakeClock()
    beat(monitor, "idle", 0, until=10_000.0, clock=clock)
    assert monitor.tick(clock.now) == []


def test_worker_that_failed_first_is_reported_first() -> None:
    monitor = HeartbeatMonitor(LIMITS_S, silence_s=2.0)
    for worker, last in [("worker-0", 1.2), ("worker-1", 1.0), ("worker-2", 3.0)]:
        monitor.watch(worker, now=0.0)
        monitor.heartbeat(worker, "step", 0, now=last)
    assert [verdict.worker for verdict in monitor.tick(4.0)] == ["worker-1", "worker-0"]


def test_time_before_a_restart_of_the_limits_does_not_count(monitor: HeartbeatMonitor) -> None:
    monitor.watch("worker-1", now=0.0)
    monitor.heartbeat("worker-1", "idle", 3, now=1.0)
    monitor.restart(100.0)
    assert monitor.tick(102.0) == []
    assert [(verdict.worker, verdict.since) for verdict in monitor.tick(102.1)] == [("worker-1", 100.0)]
    monitor.heartbeat("worker-1", "idle", 3, now=160.1)
    assert monitor.tick(160.0) == []
    assert [(verdict.worker, verdict.reason) for verdict in monitor.tick(160.1)] == [("worker-0", Reason.STUCK)]


def test_allowed_gap_is_half_of_the_shortest_limit() -> None:
    assert HeartbeatMonitor({"step": 5.0, "save": 3.0}, silence_s=2.0).gap_s == 1.0
    assert HeartbeatMonitor({"step": 5.0, "save": 3.0}, silence_s=10.0).gap_s == 1.5
    assert HeartbeatMonitor({}, silence_s=10.0).gap_s == 5.0


def test_forgotten_worker_is_not_watched(monitor: HeartbeatMonitor) -> None:
    monitor.forget("worker-0")
    monitor.heartbeat("worker-0", "idle", 0, now=1.0)
    assert monitor.tick(1000.0) == []


@given(st.integers(0, 2**32))
def test_living_worker_is_never_reported_over_a_slow_network(seed: int) -> None:
    network = FakeNetwork(seed, Faults(delay_s=(0.0, 1.4)))
    master = network.endpoint(identity(MASTER), peers=1)
    sender = network.endpoint(identity("worker_heartbeat-0"), peers=1)
    sender.connect(MASTER)
    monitor = HeartbeatMonitor(LIMITS_S, silence_s=2.0)
    monitor.watch("worker-0", now=0.0)
    for beat_number in range(40):
        sender.send(MASTER, Heartbeat("step", beat_number // 4))
        until = network.clock.now + 0.5
        while (received := master.receive(until - network.clock.now)) is not None:
            if isinstance(received.message, Heartbeat):
                monitor.heartbeat("worker-0", received.message.section, received.message.step, network.clock.now)
        assert monitor.tick(network.clock.now) == []
