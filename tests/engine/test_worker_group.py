"""The master's conversation with its workers, on a virtual clock; their processes only sleep."""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.engine.processes import STACK_SIGNAL, Supervisor
from runner.engine.transport.endpoint import Received
from runner.engine.transport.heartbeat_monitor import SILENCE_S, HeartbeatMonitor
from runner.engine.transport.in_process import FakeEndpoint, FakeNetwork, Faults
from runner.engine.transport.messages import (
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
from runner.engine.transport.names import MASTER
from runner.engine.worker_group import WorkerGroup
from runner.errors import ClusterError, Interrupted, NonFiniteLossError, NumericError, RunnerError
from tests.engine.transport.conftest import identity

SOON_S = 10.0
SLEEPS = ("/bin/sleep", "60")
WORKERS = ("worker-0", "worker-1")


class Stage:
    """A group of two workers, and their side of the conversation."""

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

    def say(self, name: str, *messages: Message, after_s: float = 0.0) -> None:
        """Let a peer say something that arrives after some seconds."""
        self.network.faults = Faults(delay_s=(after_s, after_s))
        for message in messages:
            self.peers[name].send(MASTER, message)
        self.network.faults = Faults()

    def heard(self, worker: str) -> list[type[Message]]:
        """The kinds of all that the master has said to a worker."""
        heard = []
        while (received := self.peers[worker].receive(0)) is not None:
            heard.append(type(received.message))
        return heard

    def kill(self, worker: str) -> None:
        """Let a worker's process die."""
        process = self.supervisor.workers[worker]
        os.kill(process.pid, signal.SIGKILL)
        assert select.select([process], [], [], SOON_S)[0]


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as supervisor:
        yield supervisor


@pytest.fixture
def stage(supervisor: Supervisor, tmp_path: Path) -> Stage:
    """Before the master has read the hellos."""
    return Stage(supervisor, tmp_path)


@pytest.fixture
def talking(stage: Stage) -> Stage:
    """After the workers were set up."""
    stage.group.set_up(b"")
    for worker in WORKERS:
        stage.heard(worker)
    return stage


def test_workers_are_greeted_and_set_up_once_all_have_said_hello(stage: Stage) -> None:
    stage.group.set_up(b"document")
    for worker in WORKERS:
        received = [stage.peers[worker].receive(0) for _ in range(3)]
        assert [each.message.kind for each in received if each] == ["hello", "welcome", "setup"]
        assert received[2] is not None
        assert bytes(received[2].frames[0]) == b"document"


def test_one_answer_of_the_kind_is_taken_from_each_and_all_else_let_go(talking: Stage) -> None:
    talking.say("worker-0", Loaded("p"), Done("p", 1, {}, {}), Done("p", 2, {}, {}), Done("p", 3, {}, {}))
    talking.say("worker-1", Done("p", 2, {}, {"a": 1.0}), after_s=3.0)
    done = talking.group.gather(WORKERS, Done, lambda answer: answer.step == 2)
    assert done == {"worker-0": Done("p", 2, {}, {}), "worker-1": Done("p", 2, {}, {"a": 1.0})}
    assert talking.network.clock.now == 3.0
    talking.say("worker-1", Loaded("p"))
    talking.say("worker-0", Loaded("p"), after_s=1.0)
    assert talking.group.gather(["worker-0"], Loaded) == {"worker-0": Loaded("p")}
    assert talking.group.gather([], Done) == {}


def test_answers_are_taken_one_by_one_as_they_come(talking: Stage) -> None:
    talking.say("worker-1", Loaded("p"), Done("p", 2, {}, {}))
    talking.say("worker-0", Done("p", 2, {}, {}), after_s=3.0)
    assert talking.group.next(Done) == ("worker-1", Done("p", 2, {}, {}), ())
    assert talking.group.next(Done) == ("worker-0", Done("p", 2, {}, {}), ())
    assert talking.network.clock.now == 3.0


def test_answers_of_several_kinds_are_taken_in_their_order(talking: Stage) -> None:
    talking.say("worker-1", Done("p", 2, {}, {}), Loaded("p"), Done("p", 3, {}, {}))
    told = [talking.group.next(Loaded, Done)[1] for _ in range(3)]
    assert told == [Done("p", 2, {}, {}), Loaded("p"), Done("p", 3, {}, {})]


def test_a_silent_worker_is_noticed_however_often_another_answers(talking: Stage) -> None:
    talking.say("worker_heartbeat-1", Heartbeat(STEP, 7))
    for tenth in range(600):
        talking.say("worker_heartbeat-0", Heartbeat(STEP, 7), after_s=tenth / 10)
        talking.say("worker-0", Done("p", tenth, {}, {}), after_s=tenth / 10)

    def answer_on() -> None:
        while talking.group.next(Done):
            pass

    with pytest.raises(ClusterError, match=r"^worker-1 is silent"):
        answer_on()
    assert talking.network.clock.now < SILENCE_S + 1


def test_who_does_not_answer_within_the_limit_is_named_with_the_log(talking: Stage, tmp_path: Path) -> None:
    talking.say("worker-0", Loaded("p"))
    expected = re.escape(f"no 'loaded' from worker-1 within 5 s; what they did: {tmp_path / 'worker-1.log'}")
    with pytest.raises(ClusterError, match=expected):
        talking.group.gather(WORKERS, Loaded, limit_s=5.0)
    assert 5.0 < talking.network.clock.now < 6.0


OWN_CLASSES = [kind for kind in RunnerError.__subclasses__() if kind is not Interrupted]


@pytest.mark.parametrize("kind", OWN_CLASSES, ids=lambda kind: kind.__name__)
def test_what_a_worker_reports_is_raised_in_its_class_with_its_name(talking: Stage, kind: type[RunnerError]) -> None:
    talking.say("worker-1", Failed.of(kind("node 'fc1' broke")))
    with pytest.raises(RunnerError, match=r"^worker-1: node 'fc1' broke$") as caught:
        talking.group.gather(WORKERS, Done)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ZeroDivisionError("a defect"), "worker-1: ZeroDivisionError: a defect"),
        (AssertionError(), "worker-1: AssertionError: "),
        (NonFiniteLossError(3, "not for a worker to say"), "worker-1: NonFiniteLossError: not for a worker to say"),
        (Interrupted(signal.SIGINT), "worker-1: Interrupted: stopped by SIGINT"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_other_class_is_named_in_the_text_with_the_log(
    talking: Stage, tmp_path: Path, error: Exception, said: str
) -> None:
    talking.say("worker-1", Failed.of(error))
    with pytest.raises(RunnerError) as caught:
        talking.group.gather(WORKERS, Done)
    assert type(caught.value) is RunnerError
    assert str(caught.value) == f"{said}\nThe traceback is in its log: {tmp_path / 'worker-1.log'}"


def test_what_a_worker_reports_is_fit_for_a_terminal(talking: Stage) -> None:
    text = "\n".join(["\x1b[2J" + "x" * 3000, *map(str, range(100))])
    talking.say("worker-0", Failed("NumericError\x1b[2J", text[-4096:], "", ""))
    with pytest.raises(RunnerError) as caught:
        talking.group.gather(WORKERS, Done)
    assert "\x1b" not in str(caught.value)
    assert r"worker-0: NumericError\x1b[2J: 60" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 41


def test_a_death_is_noticed_while_an_answer_is_awaited(talking: Stage) -> None:
    talking.kill("worker-0")
    with pytest.raises(ClusterError, match=r"^worker-0 \(pid \d+\) was killed by SIGKILL"):
        talking.group.gather(WORKERS, Done)


def test_what_a_dying_worker_said_goes_before_how_it_died(talking: Stage) -> None:
    talking.say("worker-0", Failed.of(NumericError("a value")))
    talking.kill("worker-0")
    with pytest.raises(NumericError, match="worker-0: a value"):
        talking.group.gather(WORKERS, Done)


LOSS = ClusterError("cannot reach worker-0: nobody listens")


def test_what_a_worker_said_goes_before_the_news_of_its_loss(talking: Stage) -> None:
    talking.say("worker-1", Failed.of(LOSS))
    talking.say("worker-0", Failed.of(NumericError("a value")), after_s=0.1)
    with pytest.raises(NumericError, match=r"^worker-0: a value$"):
        talking.group.gather(WORKERS, Done)


def test_how_a_worker_died_goes_before_the_news_of_its_loss(talking: Stage) -> None:
    talking.say("worker-1", Failed.of(LOSS))
    talking.kill("worker-0")
    with pytest.raises(ClusterError, match=r"^worker-0 \(pid \d+\) was killed by SIGKILL"):
        talking.group.gather(WORKERS, Done)


def test_who_tells_a_loss_and_ends_for_it_is_not_the_loss(talking: Stage) -> None:
    talking.say("worker-1", Failed.of(LOSS))
    talking.kill("worker-1")
    with pytest.raises(ClusterError, match=r"^worker-1: cannot reach worker-0: nobody listens$"):
        talking.group.gather(WORKERS, Done)


def test_the_news_of_a_loss_are_told_where_nothing_lies_behind_them(talking: Stage) -> None:
    talking.say("worker-1", Failed.of(LOSS))
    with pytest.raises(ClusterError, match=r"^worker-1: cannot reach worker-0: nobody listens$"):
        talking.group.gather(WORKERS, Done)


def test_a_worker_that_cannot_be_told_anything_is_named(talking: Stage) -> None:
    talking.network.kill("worker-1")
    with pytest.raises(ClusterError, match="could not send 'run' to worker-1: it is gone"):
        talking.group.tell("worker-1", Run("p", 0, {}))


def test_where_it_has_died_that_is_said_instead(talking: Stage) -> None:
    talking.network.kill("worker-1")
    talking.kill("worker-1")
    with pytest.raises(ClusterError, match=r"^worker-1 \(pid \d+\) was killed by SIGKILL"):
        talking.group.tell("worker-1", Run("p", 0, {}))


def test_the_last_words_of_a_worker_that_cannot_be_told_anything_are_read(talking: Stage) -> None:
    talking.say("worker-1", Failed.of(NumericError("a value")))
    talking.network.kill("worker-1")
    with pytest.raises(NumericError, match="worker-1: a value"):
        talking.group.tell("worker-1", Run("p", 0, {}))


def wait_for_steps(stage: Stage) -> None:
    stage.group.gather(WORKERS, Done)


def wait_with_a_limit(stage: Stage) -> None:
    stage.group.gather(WORKERS, Done, limit_s=1e6)


@pytest.mark.parametrize("wait", [wait_for_steps, wait_with_a_limit])
def test_a_silent_worker_is_noticed_and_shows_its_stacks(
    talking: Stage, tmp_path: Path, wait: Callable[[Stage], None]
) -> None:
    talking.say("worker_heartbeat-1", Heartbeat(STEP, 7))
    expected = (
        r"^worker-1 is silent: no heartbeat for 10\.\d s \(limit 10 s\), last heard in section 'step' at step 7; "
        rf"the stacks of its threads, unless it is stopped altogether, are in {tmp_path / 'worker-1.log'}$"
    )
    with pytest.raises(ClusterError, match=expected):
        wait(talking)
    assert SILENCE_S < talking.network.clock.now < SILENCE_S + 1
    exits = [talking.supervisor.workers[worker].look() for worker in WORKERS]
    assert [exit_ and exit_.code for exit_ in exits] == [None, -STACK_SIGNAL]


def test_a_silent_worker_is_noticed_whatever_arrives_meanwhile(talking: Stage) -> None:
    talking.say("worker_heartbeat-1", Heartbeat(STEP, 7))
    for tenth in range(600):
        talking.say("worker_heartbeat-0", Heartbeat(STEP, 7), after_s=tenth / 10)
    with pytest.raises(ClusterError, match=r"^worker-1 is silent"):
        talking.group.gather(WORKERS, Done)
    assert talking.network.clock.now < SILENCE_S + 1


def test_heartbeats_that_come_keep_a_worker_alive(talking: Stage) -> None:
    for second in range(60):
        talking.say("worker_heartbeat-0", Heartbeat(STEP, 7), after_s=float(second))
        talking.say("worker_heartbeat-1", Heartbeat(IDLE, 6), after_s=float(second))
    for worker in WORKERS:
        talking.say(worker, Done("p", 7, {}, {}), after_s=60.0)
    assert set(talking.group.gather(WORKERS, Done)) == set(WORKERS)


def test_a_step_that_takes_too_long_is_noticed_though_heartbeats_come(talking: Stage) -> None:
    for second in range(400):
        talking.say("worker_heartbeat-0", Heartbeat(STEP, 7), after_s=float(second))
        talking.say("worker_heartbeat-1", Heartbeat(IDLE, 6), after_s=float(second))
    with pytest.raises(ClusterError, match=r"^worker-0 is stuck: section 'step' at step 7 has taken 30\d\.\d s"):
        talking.group.gather(WORKERS, Done)


def test_who_was_told_to_leave_may_be_silent_and_is_waited_for(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = Stage(supervisor, tmp_path, command=("/bin/true",))
    for worker in WORKERS:
        supervisor.expect_exit(worker)
    stage.group.set_up(b"")
    stage.say("worker_heartbeat-0", Heartbeat(IDLE, 3))
    stage.say("worker-0", Loaded("p"), after_s=0.1)
    stage.group.gather(["worker-0"], Loaded)
    stage.network.clock.advance(SILENCE_S)
    for worker in WORKERS:
        stage.say(worker, Bye(), after_s=5.0)
    stage.group.dismiss()
    for worker in WORKERS:
        assert stage.heard(worker)[-1] is Shutdown
    assert [worker.exit and worker.exit.code for worker in supervisor.workers.values()] == [0, 0]


def test_who_does_not_leave_is_named(talking: Stage) -> None:
    talking.say("worker-0", Bye())
    with pytest.raises(ClusterError, match="no 'bye' from worker-1 within 10 s"):
        talking.group.dismiss()


class Interruption(FakeEndpoint):
    """An endpoint at which Ctrl-C is pressed."""

    def receive(self, timeout_s: float) -> Received | None:
        raise KeyboardInterrupt


def press_ctrl_c(stage: Stage) -> None:
    stage.group._endpoint = Interruption(stage.network, identity(MASTER), peers=2)
    with pytest.raises(KeyboardInterrupt):
        stage.group.gather(WORKERS, Done)


def fail_in_a_step(stage: Stage) -> None:
    stage.say("worker-0", Failed.of(NumericError("a value")))
    with pytest.raises(NumericError):
        stage.group.gather(WORKERS, Done)


def lose_a_worker(stage: Stage) -> None:
    stage.network.kill("worker-0")
    with pytest.raises(ClusterError, match="it is gone"):
        stage.group.tell("worker-0", Run("p", 0, {}))


@pytest.mark.parametrize("break_off", [press_ctrl_c, fail_in_a_step, lose_a_worker])
def test_after_an_error_nobody_is_told_anything(talking: Stage, break_off: Callable[[Stage], None]) -> None:
    break_off(talking)
    expected = "worker-1 was not told 'run': workers cannot go on after an error, start anew"
    with pytest.raises(ClusterError, match=expected):
        talking.group.tell("worker-1", Run("p", 1, {}))
    talking.group.dismiss()
    assert talking.heard("worker-1") == []
