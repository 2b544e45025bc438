import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.transport.heartbeat_monitor import HeartbeatMonitor, Reason
from runner.engine.cluster.transport.messages import Heartbeat
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeClock, FakeNetwork, Faults

LIMITS_S = {"setup": 60.0, "load": 30.0, "step": 5.0, "save": 100.0}


@pytest.fixture
def monitor() -> HeartbeatMonitor:
    monitor = HeartbeatMonitor(LIMITS_S, silence_s=2.0)
    monitor.watch("worker-0", now=0.0)
    return monitor


def beat(monitor: HeartbeatMonitor, section: str, step: int, until: float, clock: FakeClock) -> None:
    """Beat every half second until the clock shows ``until``."""
    while clock.now < until:
        clock.advance(0.5)
        monitor.heartbeat("worker-0", section, step, clock.now)


def test_limit_of_setup_applies_before_the_first_heartbeat(monitor: HeartbeatMonitor) -> None:
    assert monitor.tick(60.0) == []
    (verdict,) = monitor.tick(60.1)
    assert verdict.reason is Reason.STUCK
    assert (verdict.section, verdict.since, verdict.limit_s) == ("setup", 0.0, 60.0)


def test_silence_is_noticed_in_any_section(monitor: HeartbeatMonitor) -> None:
    monitor.heartbeat("worker-0", "idle", 7, now=1.0)
    assert monitor.tick(3.0) == []
    (verdict,) = monitor.tick(3.5)
    assert verdict.reason is Reason.SILENT
    assert str(verdict) == (
        "worker-0 is silent: no heartbeat for 2.5 s (limit 2 s), last heard in section 'idle' at step 7"
    )


@pytest.mark.parametrize(("section", "limit_s"), LIMITS_S.items())
def test_each_section_has_its_limit(monitor: HeartbeatMonitor, section: str, limit_s: float) -> None:
    clock = FakeClock()
    monitor.heartbeat("worker-0", section, 3, now=0.0)
    beat(monitor, section, 3, until=limit_s, clock=clock)
    assert monitor.tick(clock.now) == []
    beat(monitor, section, 3, until=limit_s + 1, clock=clock)
    (verdict,) = monitor.tick(clock.now)
    assert verdict.reason is Reason.STUCK
    assert verdict.since == 0.0
    assert f"worker-0 is stuck: section '{section}' at step 3 has taken" in str(verdict)


def test_new_step_or_section_is_progress(monitor: HeartbeatMonitor) -> None:
    clock = FakeClock()
    for step in range(10):
        beat(monitor, "step", step, until=clock.now + 4.0, clock=clock)
        assert monitor.tick(clock.now) == []
    beat(monitor, "save", 9, until=clock.now + 50.0, clock=clock)
    assert monitor.tick(clock.now) == []


def test_idle_has_no_limit(monitor: HeartbeatMonitor) -> None:
    clock = FakeClock()
    beat(monitor, "idle", 0, until=10_000.0, clock=clock)
    assert monitor.tick(clock.now) == []
    with pytest.raises(ValueError, match="section 'idle' cannot have a limit"):
        HeartbeatMonitor({"idle": 1.0})


def test_longest_failure_comes_first() -> None:
    monitor = HeartbeatMonitor(LIMITS_S, silence_s=2.0)
    for worker, last in [("worker-0", 1.2), ("worker-1", 1.0), ("worker-2", 3.0)]:
        monitor.watch(worker, now=0.0)
        monitor.heartbeat(worker, "step", 0, now=last)
    assert [verdict.worker for verdict in monitor.tick(4.0)] == ["worker-1", "worker-0"]


def test_time_before_a_restart_does_not_count(monitor: HeartbeatMonitor) -> None:
    monitor.watch("worker-1", now=0.0)
    monitor.heartbeat("worker-1", "idle", 3, now=1.0)
    monitor.restart(100.0)
    assert monitor.tick(102.0) == []
    assert [(verdict.worker, verdict.since) for verdict in monitor.tick(102.1)] == [("worker-1", 100.0)]
    monitor.heartbeat("worker-1", "idle", 3, now=160.1)
    assert monitor.tick(160.0) == []
    assert [(verdict.worker, verdict.reason) for verdict in monitor.tick(160.1)] == [("worker-0", Reason.STUCK)]


def test_gap_is_half_of_the_shortest_limit() -> None:
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
    master = network.endpoint(identity("master-0"), peers=1)
    sender = network.endpoint(identity("worker_heartbeat-0"), peers=1)
    sender.connect("master-0")
    monitor = HeartbeatMonitor(LIMITS_S, silence_s=2.0)
    monitor.watch("worker-0", now=0.0)
    for beat_number in range(40):
        sender.send("master-0", Heartbeat("step", beat_number // 4))
        until = network.clock.now + 0.5
        while (received := master.receive(until - network.clock.now)) is not None:
            if isinstance(received.message, Heartbeat):
                message = received.message
                monitor.heartbeat("worker-0", message.section, message.step, network.clock.now)
        assert monitor.tick(network.clock.now) == []
