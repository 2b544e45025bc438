"""The master's side of all messages, on a virtual clock; the worker processes only sleep."""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from runner.engine.cluster.processes import STACK_SIGNAL, Supervisor
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.transport.heartbeat_monitor import SILENCE_S, HeartbeatMonitor
from runner.engine.cluster.transport.in_process import FakeEndpoint, FakeNetwork, Faults
from runner.engine.cluster.transport.messages import (
    IDLE,
    STEP,
    Bye,
    Done,
    Failed,
    Heartbeat,
    Loaded,
    Message,
    Run,
    Shutdown,
)
from runner.engine.cluster.transport.names import MASTER
from runner.engine.cluster.worker_group import WorkerGroup
from runner.errors import ClusterError, Interrupted, NonFiniteLossError, NumericError, RunnerError
from tests.engine.cluster.transport.conftest import identity

SOON_S = 10.0
SLEEPS = ("/bin/sleep", "60")
WORKERS = ("worker-0", "worker-1")


class Stage:
    """A group of two workers, and the workers' endpoints."""

    def __init__(self, supervisor: Supervisor, logs: Path, command: tuple[str, ...] = SLEEPS) -> None:
        self.network = FakeNetwork()
        self.supervisor = supervisor
        self.monitor = HeartbeatMonitor()
        clock = self.network.clock
        master = self._endpoint(MASTER)
        self.group = WorkerGroup(WORKERS, logs, master, supervisor, self.monitor, lambda: clock.now)
        self.peers = {name: self._endpoint(name) for name in (*WORKERS, "worker_heartbeat-0", "worker_heartbeat-1")}
        for name, peer in self.peers.items():
            peer.connect(MASTER)
            if name in WORKERS:
                supervisor.start(name, command, logs / f"{name}.log", {})
                self.monitor.watch(name, clock.now)

    def _endpoint(self, name: str) -> FakeEndpoint:
        return self.network.endpoint(identity(name), peers=2)

    def send(self, name: str, *messages: Message, after_s: float = 0.0) -> None:
        """Send a message from a peer that arrives after some seconds."""
        self.network.faults = Faults(delay_s=(after_s, after_s))
        for message in messages:
            self.peers[name].send(MASTER, message)
        self.network.faults = Faults()

    def heard(self, worker: str) -> list[type[Message]]:
        """The kinds of all messages from the master to a worker."""
        heard = []
        while (received := self.peers[worker].receive(0)) is not None:
            heard.append(type(received.message))
        return heard

    def kill(self, worker: str) -> None:
        """Kill a worker's process."""
        process = self.supervisor.workers[worker]
        os.kill(process.pid, signal.SIGKILL)
        assert select.select([process], [], [], SOON_S)[0]


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as supervisor:
        yield supervisor


@pytest.fixture
def stage(supervisor: Supervisor, tmp_path: Path) -> Stage:
    """A group whose master has not read the hellos."""
    return Stage(supervisor, tmp_path)


@pytest.fixture
def ready(stage: Stage) -> Stage:
    """A group after setup."""
    stage.group.set_up(b"")
    for worker in WORKERS:
        stage.heard(worker)
    return stage


def test_workers_are_set_up_after_all_hellos(stage: Stage) -> None:
    stage.group.set_up(b"document")
    for worker in WORKERS:
        received = [stage.peers[worker].receive(0) for _ in range(3)]
        assert [each.message.kind for each in received if each] == ["hello", "welcome", "setup"]
        assert received[2] is not None
        assert bytes(received[2].frames[0]) == b"document"


def test_gather_takes_one_answer_from_each_and_ignores_others(ready: Stage) -> None:
    ready.send("worker-0", Loaded("p"), Done("p", 1, {}, {}), Done("p", 2, {}, {}), Done("p", 3, {}, {}))
    ready.send("worker-1", Done("p", 2, {}, {"a": 1.0}), after_s=3.0)
    done = ready.group.gather(WORKERS, Done, lambda answer: answer.step == 2)
    assert done == {"worker-0": Done("p", 2, {}, {}), "worker-1": Done("p", 2, {}, {"a": 1.0})}
    assert ready.network.clock.now == 3.0
    ready.send("worker-1", Loaded("p"))
    ready.send("worker-0", Loaded("p"), after_s=1.0)
    assert ready.group.gather(["worker-0"], Loaded) == {"worker-0": Loaded("p")}
    assert ready.group.gather([], Done) == {}


def test_next_returns_answers_in_order_of_arrival(ready: Stage) -> None:
    ready.send("worker-1", Loaded("p"), Done("p", 2, {}, {}))
    ready.send("worker-0", Done("p", 2, {}, {}), after_s=3.0)
    assert ready.group.next(Done) == ("worker-1", Done("p", 2, {}, {}), ())
    assert ready.group.next(Done) == ("worker-0", Done("p", 2, {}, {}), ())
    assert ready.network.clock.now == 3.0


def test_next_accepts_several_kinds(ready: Stage) -> None:
    ready.send("worker-1", Done("p", 2, {}, {}), Loaded("p"), Done("p", 3, {}, {}))
    answers = [ready.group.next(Loaded, Done)[1] for _ in range(3)]
    assert answers == [Done("p", 2, {}, {}), Loaded("p"), Done("p", 3, {}, {})]


def test_silent_worker_is_noticed_while_another_answers(ready: Stage) -> None:
    ready.send("worker_heartbeat-1", Heartbeat(STEP, 7))
    for tenth in range(600):
        ready.send("worker_heartbeat-0", Heartbeat(STEP, 7), after_s=tenth / 10)
        ready.send("worker-0", Done("p", tenth, {}, {}), after_s=tenth / 10)

    def answer_on() -> None:
        while ready.group.next(Done):
            pass

    with pytest.raises(ClusterError, match=r"^worker-1 is silent"):
        answer_on()
    assert ready.network.clock.now < SILENCE_S + 1


@pytest.fixture
def flooded(ready: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A group with always a message of worker 0 waiting; reading one takes a millisecond."""
    master, clock = ready.group._endpoint, ready.network.clock
    receive = master.receive

    def read(timeout_s: float) -> Received | None:
        clock.advance(1e-3)
        assert clock.now < 5 * SILENCE_S, "workers were never checked"
        ready.send("worker-0", Done("p", 6, {}, {}))
        return receive(timeout_s)

    monkeypatch.setattr(master, "receive", read)
    return ready


def test_death_is_noticed_while_messages_are_always_waiting(flooded: Stage) -> None:
    flooded.kill("worker-1")
    with pytest.raises(ClusterError, match=r"^worker-1 \(pid \d+\) was killed by SIGKILL"):
        flooded.group.gather(WORKERS, Loaded)
    assert flooded.network.clock.now < 2.0


def test_silence_is_noticed_while_messages_are_always_waiting(flooded: Stage) -> None:
    flooded.send("worker_heartbeat-1", Heartbeat(STEP, 7))
    with pytest.raises(ClusterError, match=r"^worker-1 is silent"):
        flooded.group.gather(WORKERS, Loaded)
    assert flooded.network.clock.now < SILENCE_S + 1


def test_limit_passes_while_messages_are_always_waiting(flooded: Stage) -> None:
    with pytest.raises(ClusterError, match="no 'loaded' from worker-1 within 5 s"):
        flooded.group.gather(["worker-1"], Loaded, limit_s=5.0)
    assert flooded.network.clock.now < 6.0


def test_reported_loss_is_raised_while_messages_are_always_waiting(flooded: Stage) -> None:
    flooded.send("worker-1", Failed.of(LOSS))
    with pytest.raises(ClusterError, match=r"^worker-1: cannot reach worker-0: no process listens$"):
        flooded.group.gather(WORKERS, Loaded)
    assert flooded.network.clock.now < 1.0


def test_heartbeats_behind_other_messages_count(ready: Stage) -> None:
    """The master needs four seconds to read a message."""
    for second in range(80):
        for worker in WORKERS:
            ready.send(worker.replace("-", "_heartbeat-"), Heartbeat(STEP, 7), after_s=float(second))
    ready.send("worker-0", *(Done("p", step, {}, {}) for step in range(20)))
    for step in range(20):
        assert ready.group.next(Done)[1].step == step
        ready.network.clock.advance(4.0)


def stop_and_continue(stage: Stage, monkeypatch: pytest.MonkeyPatch, living: Collection[str]) -> None:
    """Stop the master for an hour in its next wait; messages of living workers arrive after it continues."""
    for worker in WORKERS:
        stage.send(worker.replace("-", "_heartbeat-"), Heartbeat(STEP, 7))
    stage.send("worker-0", Loaded("p"))
    stage.group.gather(["worker-0"], Loaded)
    master = stage.group._endpoint
    receive = master.receive

    def wait(timeout_s: float) -> Received | None:
        monkeypatch.setattr(master, "receive", receive)
        stage.network.clock.advance(3600.0)
        for worker in living:
            for second in range(60):
                stage.send(worker.replace("-", "_heartbeat-"), Heartbeat(STEP, 7), after_s=second + 0.1)
            stage.send(worker, Done("p", 7, {}, {}), after_s=3.0)
        return None

    monkeypatch.setattr(master, "receive", wait)


@pytest.mark.parametrize("limit_s", [None, 5.0])
def test_time_limits_restart_after_the_master_was_stopped(
    ready: Stage, monkeypatch: pytest.MonkeyPatch, limit_s: float | None
) -> None:
    stop_and_continue(ready, monkeypatch, living=WORKERS)
    assert set(ready.group.gather(WORKERS, Done, limit_s=limit_s)) == set(WORKERS)


def test_silent_worker_is_noticed_after_the_master_was_stopped(ready: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_and_continue(ready, monkeypatch, living=["worker-0"])
    with pytest.raises(ClusterError, match=r"^worker-1 is silent: no heartbeat for 10\.\d s"):
        ready.group.gather(WORKERS, Done)
    assert ready.network.clock.now < 3600.0 + SILENCE_S + 1


def test_worker_beyond_the_limit_is_named_with_its_log(ready: Stage, tmp_path: Path) -> None:
    ready.send("worker-0", Loaded("p"))
    expected = re.escape(f"no 'loaded' from worker-1 within 5 s; see their logs: {tmp_path / 'worker-1.log'}")
    with pytest.raises(ClusterError, match=expected):
        ready.group.gather(WORKERS, Loaded, limit_s=5.0)
    assert 5.0 < ready.network.clock.now < 6.0


OWN_CLASSES = [kind for kind in RunnerError.__subclasses__() if kind is not Interrupted]


@pytest.mark.parametrize("kind", OWN_CLASSES, ids=lambda kind: kind.__name__)
def test_reported_error_keeps_its_class_and_names_the_worker(ready: Stage, kind: type[RunnerError]) -> None:
    ready.send("worker-1", Failed.of(kind("node 'fc1' broke")))
    with pytest.raises(RunnerError, match=r"^worker-1: node 'fc1' broke$") as caught:
        ready.group.gather(WORKERS, Done)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ZeroDivisionError("a defect"), "worker-1: ZeroDivisionError: a defect"),
        (AssertionError(), "worker-1: AssertionError: "),
        (NonFiniteLossError(3, "not of a worker"), "worker-1: NonFiniteLossError: not of a worker"),
        (Interrupted(signal.SIGINT), "worker-1: Interrupted: stopped by SIGINT"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_classes_are_named_in_the_text(ready: Stage, tmp_path: Path, error: Exception, text: str) -> None:
    ready.send("worker-1", Failed.of(error))
    with pytest.raises(RunnerError) as caught:
        ready.group.gather(WORKERS, Done)
    assert type(caught.value) is RunnerError
    assert str(caught.value) == f"{text}\nThe traceback is in its log: {tmp_path / 'worker-1.log'}"


def test_reported_error_is_escaped_for_a_terminal(ready: Stage) -> None:
    text = "\n".join(["\x1b[2J" + "x" * 3000, *map(str, range(100))])
    ready.send("worker-0", Failed("NumericError\x1b[2J", text[-4096:], "", ""))
    with pytest.raises(RunnerError) as caught:
        ready.group.gather(WORKERS, Done)
    assert "\x1b" not in str(caught.value)
    assert r"worker-0: NumericError\x1b[2J: 60" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 41


def test_death_is_noticed_while_an_answer_is_awaited(ready: Stage) -> None:
    ready.kill("worker-0")
    with pytest.raises(ClusterError, match=r"^worker-0 \(pid \d+\) was killed by SIGKILL"):
        ready.group.gather(WORKERS, Done)


def test_reported_error_has_priority_over_the_death(ready: Stage) -> None:
    ready.send("worker-0", Failed.of(NumericError("a value")))
    ready.kill("worker-0")
    with pytest.raises(NumericError, match="worker-0: a value"):
        ready.group.gather(WORKERS, Done)


LOSS = ClusterError("cannot reach worker-0: no process listens")


def test_reported_error_has_priority_over_a_reported_loss(ready: Stage) -> None:
    ready.send("worker-1", Failed.of(LOSS))
    ready.send("worker-0", Failed.of(NumericError("a value")), after_s=0.1)
    with pytest.raises(NumericError, match=r"^worker-0: a value$"):
        ready.group.gather(WORKERS, Done)


def test_death_has_priority_over_a_reported_loss(ready: Stage) -> None:
    ready.send("worker-1", Failed.of(LOSS))
    ready.kill("worker-0")
    with pytest.raises(ClusterError, match=r"^worker-0 \(pid \d+\) was killed by SIGKILL"):
        ready.group.gather(WORKERS, Done)


def test_exit_of_the_reporter_is_not_the_cause(ready: Stage) -> None:
    ready.send("worker-1", Failed.of(LOSS))
    ready.kill("worker-1")
    with pytest.raises(ClusterError, match=r"^worker-1: cannot reach worker-0: no process listens$"):
        ready.group.gather(WORKERS, Done)


def test_reported_loss_without_another_cause_is_raised(ready: Stage) -> None:
    ready.send("worker-1", Failed.of(LOSS))
    with pytest.raises(ClusterError, match=r"^worker-1: cannot reach worker-0: no process listens$"):
        ready.group.gather(WORKERS, Done)


def test_worker_that_cannot_be_reached_is_named(ready: Stage) -> None:
    ready.network.kill("worker-1")
    with pytest.raises(ClusterError, match="could not send 'run' to worker-1: it is gone"):
        ready.group.send("worker-1", Run("p", 0, {}))


def test_death_of_an_unreachable_worker_is_reported(ready: Stage) -> None:
    ready.network.kill("worker-1")
    ready.kill("worker-1")
    with pytest.raises(ClusterError, match=r"^worker-1 \(pid \d+\) was killed by SIGKILL"):
        ready.group.send("worker-1", Run("p", 0, {}))


def test_error_of_an_unreachable_worker_is_read(ready: Stage) -> None:
    ready.send("worker-1", Failed.of(NumericError("a value")))
    ready.network.kill("worker-1")
    with pytest.raises(NumericError, match="worker-1: a value"):
        ready.group.send("worker-1", Run("p", 0, {}))


def wait_for_steps(stage: Stage) -> None:
    stage.group.gather(WORKERS, Done)


def wait_with_a_limit(stage: Stage) -> None:
    stage.group.gather(WORKERS, Done, limit_s=1e6)


@pytest.mark.parametrize("wait", [wait_for_steps, wait_with_a_limit])
def test_silent_worker_is_noticed_and_dumps_its_stacks(
    ready: Stage, tmp_path: Path, wait: Callable[[Stage], None]
) -> None:
    ready.send("worker_heartbeat-1", Heartbeat(STEP, 7))
    expected = (
        r"^worker-1 is silent: no heartbeat for 10\.\d s \(limit 10 s\), last heard in section 'step' at step 7; "
        rf"the stacks of its threads, unless the process is stopped, are in {tmp_path / 'worker-1.log'}$"
    )
    with pytest.raises(ClusterError, match=expected):
        wait(ready)
    assert SILENCE_S < ready.network.clock.now < SILENCE_S + 1
    exits = [ready.supervisor.workers[worker].poll() for worker in WORKERS]
    assert [exit_ and exit_.code for exit_ in exits] == [None, -STACK_SIGNAL]


def test_silent_worker_is_noticed_while_other_messages_arrive(ready: Stage) -> None:
    ready.send("worker_heartbeat-1", Heartbeat(STEP, 7))
    for tenth in range(600):
        ready.send("worker_heartbeat-0", Heartbeat(STEP, 7), after_s=tenth / 10)
    with pytest.raises(ClusterError, match=r"^worker-1 is silent"):
        ready.group.gather(WORKERS, Done)
    assert ready.network.clock.now < SILENCE_S + 1


def test_heartbeats_prevent_silence(ready: Stage) -> None:
    for second in range(60):
        ready.send("worker_heartbeat-0", Heartbeat(STEP, 7), after_s=float(second))
        ready.send("worker_heartbeat-1", Heartbeat(IDLE, 6), after_s=float(second))
    for worker in WORKERS:
        ready.send(worker, Done("p", 7, {}, {}), after_s=60.0)
    assert set(ready.group.gather(WORKERS, Done)) == set(WORKERS)


def test_stuck_step_is_noticed_in_spite_of_heartbeats(ready: Stage) -> None:
    for second in range(400):
        ready.send("worker_heartbeat-0", Heartbeat(STEP, 7), after_s=float(second))
        ready.send("worker_heartbeat-1", Heartbeat(IDLE, 6), after_s=float(second))
    with pytest.raises(ClusterError, match=r"^worker-0 is stuck: section 'step' at step 7 has taken 30\d\.\d s"):
        ready.group.gather(WORKERS, Done)


def test_worker_may_be_silent_after_shutdown(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = Stage(supervisor, tmp_path, command=("/bin/true",))
    for worker in WORKERS:
        supervisor.expect_exit(worker)
    stage.group.set_up(b"")
    stage.send("worker_heartbeat-0", Heartbeat(IDLE, 3))
    stage.send("worker-0", Loaded("p"), after_s=0.1)
    stage.group.gather(["worker-0"], Loaded)
    stage.network.clock.advance(SILENCE_S)
    for worker in WORKERS:
        stage.send(worker, Bye(), after_s=5.0)
    stage.group.shut_down()
    for worker in WORKERS:
        assert stage.heard(worker)[-1] is Shutdown
    assert [worker.exit and worker.exit.code for worker in supervisor.workers.values()] == [0, 0]


def test_worker_that_does_not_leave_is_named(ready: Stage) -> None:
    ready.send("worker-0", Bye())
    with pytest.raises(ClusterError, match="no 'bye' from worker-1 within 10 s"):
        ready.group.shut_down()


class Interruption(FakeEndpoint):
    """An endpoint whose receive raises KeyboardInterrupt."""

    def receive(self, timeout_s: float) -> Received | None:
        raise KeyboardInterrupt


def press_ctrl_c(stage: Stage) -> None:
    stage.group._endpoint = Interruption(stage.network, identity(MASTER), peers=2)
    with pytest.raises(KeyboardInterrupt):
        stage.group.gather(WORKERS, Done)


def fail_in_a_step(stage: Stage) -> None:
    stage.send("worker-0", Failed.of(NumericError("a value")))
    with pytest.raises(NumericError):
        stage.group.gather(WORKERS, Done)


def lose_a_worker(stage: Stage) -> None:
    stage.network.kill("worker-0")
    with pytest.raises(ClusterError, match="it is gone"):
        stage.group.send("worker-0", Run("p", 0, {}))


@pytest.mark.parametrize("break_off", [press_ctrl_c, fail_in_a_step, lose_a_worker])
def test_nothing_is_sent_after_an_error(ready: Stage, break_off: Callable[[Stage], None]) -> None:
    break_off(ready)
    expected = "'run' was not sent to worker-1: after an error, start a new session"
    with pytest.raises(ClusterError, match=expected):
        ready.group.send("worker-1", Run("p", 1, {}))
    ready.group.shut_down()
    assert ready.heard("worker-1") == []
