"""Messages between the master and its workers, on a virtual clock; the worker processes only sleep."""

import signal
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from runner.engine.cluster.processes import STACK_SIGNAL
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.transport.heartbeat import SILENCE_S
from runner.engine.cluster.transport.messages import (
    STEP,
    Bye,
    Done,
    Failed,
    Heartbeat,
    Hello,
    Loaded,
    Log,
    Run,
    Shutdown,
)
from runner.engine.cluster.worker_group import WorkerGroup
from runner.errors import ClusterError, Interrupted, NonFiniteLossError, NumericError, RunnerError, WorkerLostError
from tests.engine.cluster.stage import WORKERS, Stage
from tests.engine.cluster.transport.conftest import identity, next_of
from tests.engine.cluster.transport.fake_network import FakeEndpoint


@pytest.fixture
def stage(supervisor: Supervisor, tmp_path: Path) -> Stage:
    """Return a group whose master has not read the hello messages."""
    return Stage(supervisor, tmp_path)


@pytest.fixture
def ready(stage: Stage) -> Stage:
    """Return a group after setup."""
    return stage.set_up()


def test_workers_are_set_up_after_all_hellos(stage: Stage) -> None:
    stage.group.set_up(lambda addresses: b"document")
    for worker in WORKERS:
        received = [next_of(stage.peers[worker]) for _ in range(3)]
        assert [each.message.kind for each in received] == ["hello", "welcome", "setup"]
        assert bytes(received[2].frames[0]) == b"document"


def test_gather_returns_one_answer_of_each_worker_and_ignores_others(ready: Stage) -> None:
    ready.send("worker-0", Loaded("p"), Done("p", 1, {}), Done("p", 2, {}), Done("p", 3, {}))
    ready.send("worker-1", Done("p", 2, {"a": 1.0}), after_s=3.0)
    done = ready.group.gather(WORKERS, Done, lambda answer: answer.step == 2)
    assert done == {"worker-0": Done("p", 2, {}), "worker-1": Done("p", 2, {"a": 1.0})}
    assert ready.network.clock.now == 3.0
    ready.send("worker-1", Loaded("p"))
    ready.send("worker-0", Loaded("p"), after_s=1.0)
    assert ready.group.gather(["worker-0"], Loaded) == {"worker-0": Loaded("p")}
    assert ready.group.gather([], Done) == {}


def test_next_returns_answers_of_several_kinds_in_order_of_arrival(ready: Stage) -> None:
    ready.send("worker-1", Loaded("p"), Done("p", 2, {}), Loaded("q"), Done("p", 3, {}))
    ready.send("worker-0", Done("p", 2, {}), after_s=3.0)
    assert ready.group.next(Done) == ("worker-1", Done("p", 2, {}), ())
    assert [ready.group.next(Loaded, Done)[1] for _ in range(2)] == [Loaded("q"), Done("p", 3, {})]
    assert ready.group.next(Done) == ("worker-0", Done("p", 2, {}), ())
    assert ready.network.clock.now == 3.0


@pytest.fixture
def flooded(ready: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Return a group for which a message of worker 0 is always waiting; reading a message takes a millisecond."""
    master, clock = ready.group.endpoint, ready.network.clock
    receive = master.receive

    def read(timeout_s: float) -> Received | None:
        clock.advance(1e-3)
        assert clock.now < 5 * SILENCE_S, "workers were never checked"
        ready.send("worker-0", Done("p", 6, {}))
        return receive(timeout_s)

    monkeypatch.setattr(master, "receive", read)
    return ready


Event = Callable[[Stage], object]
LOSS = ClusterError("cannot reach worker-0: no process listens")
OF_LOSS = r"^worker-1: cannot reach worker-0: no process listens$"
KILLED = r"^{} \(pid \d+\) was killed by SIGKILL"


@pytest.mark.parametrize(
    ("happens", "limit_s", "text", "before_s"),
    [
        (lambda stage: stage.kill("worker-1"), None, KILLED.format("worker-1"), 2.0),
        (lambda stage: stage.beat(1, STEP, 7), None, "^worker-1 is silent", SILENCE_S + 1),
        (lambda stage: stage.send("worker-0", Loaded("p")), 5.0, "worker-1 sent no message 'loaded' within 5 s", 6.0),
        (lambda stage: stage.send("worker-1", Failed.of(LOSS)), None, OF_LOSS, 1.0),
    ],
    ids=["death", "silence", "limit", "loss"],
)
def test_failure_is_noticed_while_messages_are_always_waiting(
    flooded: Stage, happens: Event, limit_s: float | None, text: str, before_s: float
) -> None:
    happens(flooded)
    with pytest.raises(ClusterError, match=text):
        flooded.group.gather(WORKERS, Loaded, limit_s=limit_s)
    assert flooded.network.clock.now < before_s


def test_worker_whose_heartbeats_wait_behind_other_messages_is_not_silent(ready: Stage) -> None:
    """The master takes four seconds to read a message."""
    for worker in range(2):
        ready.beat(worker, STEP, 7, *range(80))
    ready.send("worker-0", *(Done("p", step, {}) for step in range(20)))
    for step in range(20):
        assert ready.group.next(Done)[1].step == step
        ready.network.clock.advance(4.0)


@pytest.mark.parametrize(("living", "limit_s"), [(WORKERS, None), (WORKERS, 5.0), (WORKERS[:1], None)])
def test_time_limits_restart_after_the_master_was_suspended(
    ready: Stage, monkeypatch: pytest.MonkeyPatch, living: Collection[str], limit_s: float | None
) -> None:
    """The master is suspended for an hour while it waits; messages of living workers arrive afterwards."""
    for worker in range(2):
        ready.beat(worker, STEP, 7)
    ready.send("worker-0", Loaded("p"))
    ready.group.gather(["worker-0"], Loaded)
    master = ready.group.endpoint
    receive = master.receive

    def wait(timeout_s: float) -> Received | None:
        monkeypatch.setattr(master, "receive", receive)
        ready.network.clock.advance(3600.0)
        for worker in living:
            ready.beat(WORKERS.index(worker), STEP, 7, *(second + 0.1 for second in range(60)))
            ready.send(worker, Done("p", 7, {}), after_s=3.0)
        return None

    monkeypatch.setattr(master, "receive", wait)
    if living == WORKERS:
        assert set(ready.group.gather(WORKERS, Done, limit_s=limit_s)) == set(WORKERS)
    else:
        with pytest.raises(ClusterError, match=r"^worker-1 is silent: no heartbeat for 10\.\d s"):
            ready.group.gather(WORKERS, Done)
        assert ready.network.clock.now < 3600.0 + SILENCE_S + 1


OWN_CLASSES = [kind for kind in RunnerError.__subclasses__() if kind not in (Interrupted, ClusterError)]
OTHERS: list[tuple[BaseException, str]] = [
    (ZeroDivisionError("a defect"), "worker-1: ZeroDivisionError: a defect"),
    (AssertionError(), "worker-1: AssertionError: "),
    (Interrupted(signal.SIGINT), "worker-1: Interrupted: stopped by SIGINT"),
]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        *((kind("node 'fc1' broke"), kind, "worker-1: node 'fc1' broke") for kind in OWN_CLASSES),
        # The connection between two workers is lost, so new processes can repeat the step.
        (ClusterError("cannot reach worker-0"), WorkerLostError, "worker-1: cannot reach worker-0"),
        # If a message cannot name the class of an error, the nearest base class is raised.
        (NonFiniteLossError(3, "not of a worker"), NumericError, "worker-1: not of a worker"),
        *(
            (error, RunnerError, f"{text}\nThe traceback is in the log of worker-1: LOGS/worker-1.log")
            for error, text in OTHERS
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_reported_error_keeps_its_class_or_is_named_in_the_text(
    ready: Stage, tmp_path: Path, error: BaseException, kind: type[RunnerError], text: str
) -> None:
    ready.send("worker-1", Failed.of(error))
    with pytest.raises(RunnerError) as caught:
        ready.group.gather(WORKERS, Done)
    assert type(caught.value) is kind
    assert str(caught.value) == text.replace("LOGS", str(tmp_path))


def test_reported_error_is_escaped_for_a_terminal(ready: Stage) -> None:
    text = "\n".join(["\x1b[2J" + "x" * 3000, *map(str, range(100))])
    ready.send("worker-0", Failed("NumericError\x1b[2J", text[-4096:]))
    with pytest.raises(RunnerError) as caught:
        ready.group.gather(WORKERS, Done)
    assert "\x1b" not in str(caught.value)
    assert r"worker-0: NumericError\x1b[2J: 60" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 41


BROKEN, LOST, STOPPED = map(Failed.of, (NumericError("a value"), LOSS, KeyboardInterrupt("stopped by Ctrl-C")))
VALUE, DEATH, CTRL_C = "^worker-{}: a value$", KILLED, "^worker-{}: stopped by Ctrl-C$"


def gather(stage: Stage) -> None:
    stage.group.gather(WORKERS, Done)


def fails(stage: Stage) -> None:
    with pytest.raises(NumericError):
        gather(stage)


def dies(worker: int) -> Event:
    return lambda stage: stage.kill(WORKERS[worker])


def reports(worker: int, failed: Failed, after_s: float = 0.0) -> Event:
    return lambda stage: stage.send(WORKERS[worker], failed, after_s=after_s)


RUNS_1: list[Event] = [lambda stage: stage.group.send("worker-1", Run("p", 0))]
LOSES_1: list[Event] = [lambda stage: stage.network.kill("worker-1")]


def shuts_down(stage: Stage) -> None:
    """End the workers; only worker-0 ends on request."""
    stage.send("worker-0", Bye())
    with patch.object(stage.supervisor, "expect_exits", lambda: stage.network.kill("worker-0")):
        stage.group.shut_down()


@pytest.mark.parametrize(
    ("events", "error", "text"),
    [
        # Priority of causes: an error that a worker reported, the death of a worker, a lost connection.
        ([dies(0), gather], ClusterError, DEATH.format("worker-0")),
        ([reports(0, BROKEN), dies(0), gather], NumericError, VALUE.format(0)),
        ([reports(1, LOST), reports(0, BROKEN, after_s=0.1), gather], NumericError, VALUE.format(0)),
        ([reports(1, LOST), reports(0, STOPPED, after_s=0.1), gather], WorkerLostError, CTRL_C.format(0)),
        ([reports(0, STOPPED), reports(1, LOST), gather], WorkerLostError, CTRL_C.format(0)),
        ([reports(1, LOST), dies(0), gather], ClusterError, DEATH.format("worker-0")),
        # A worker that reports a lost connection then exits, so its exit is not the cause.
        ([reports(1, LOST), dies(1), gather], ClusterError, OF_LOSS),
        ([reports(1, LOST), gather], ClusterError, OF_LOSS),
        ([*LOSES_1, *RUNS_1], WorkerLostError, "could not send 'run' to worker-1: the peer has ended"),
        ([*LOSES_1, gather], WorkerLostError, r"^master-0 has lost its connection to worker-1$"),
        ([*LOSES_1, dies(1), *RUNS_1], ClusterError, DEATH.format("worker-1")),
        ([reports(1, BROKEN), *LOSES_1, *RUNS_1], NumericError, VALUE.format(1)),
        # A worker that has ended on request has closed its connections.
        ([shuts_down], ClusterError, r"worker-1 sent no message 'bye' within 10 s; see /.*/worker-1\.log$"),
    ],
)
def test_cause_of_a_failure_is_raised(ready: Stage, events: list[Event], error: type[RunnerError], text: str) -> None:
    *before, notices = events
    for happens in before:
        happens(ready)
    with pytest.raises(error, match=text):
        notices(ready)


@pytest.mark.parametrize("limit_s", [None, 1e6])
def test_silent_worker_is_noticed_and_dumps_its_stacks(ready: Stage, tmp_path: Path, limit_s: float | None) -> None:
    ready.beat(1, STEP, 7)
    expected = (
        r"^worker-1 is silent: no heartbeat for 10\.\d s \(limit 10 s\); the last one came from section 'step' "
        rf"at step 7; the stacks of its threads are in the log {tmp_path / 'worker-1.log'}, "
        "unless the process is stopped$"
    )
    with pytest.raises(ClusterError, match=expected):
        ready.group.gather(WORKERS, Done, limit_s=limit_s)
    assert SILENCE_S < ready.network.clock.now < SILENCE_S + 1
    exits = [ready.supervisor.workers[worker].poll() for worker in WORKERS]
    assert [exit_ and exit_.code for exit_ in exits] == [None, -STACK_SIGNAL]


def test_stuck_step_is_reported_although_heartbeats_arrive(ready: Stage) -> None:
    ready.beat(0, STEP, 7, *range(400))
    ready.beat(1, "idle", 6, *range(400))
    with pytest.raises(
        ClusterError, match=r"^worker-0 is stuck: no progress in section 'step' at step 7 for 30\d\.\d s"
    ):
        ready.group.gather(WORKERS, Done)


def test_worker_may_be_silent_after_shutdown(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = Stage(supervisor, tmp_path, command=("/bin/true",))
    supervisor.expect_exits()
    stage.group.set_up(lambda addresses: b"")
    stage.send("worker_heartbeat-0", Heartbeat("idle", 3))
    stage.send("worker-0", Loaded("p"), after_s=0.1)
    stage.group.gather(["worker-0"], Loaded)
    stage.network.clock.advance(SILENCE_S)
    for worker in WORKERS:
        stage.send(worker, Bye(), after_s=5.0)
    stage.group.shut_down()
    for worker in WORKERS:
        assert stage.heard(worker)[-1] is Shutdown
    assert [worker.exit and worker.exit.code for worker in supervisor.workers.values()] == [0, 0]


@pytest.mark.parametrize(
    "end", [WorkerGroup.shut_down, lambda group: group.dismiss(INTERRUPTED)], ids=["after shutdown", "after an error"]
)
def test_log_lines_that_arrive_after_a_worker_has_left_are_written(
    elsewhere: Stage, tmp_path: Path, end: Callable[[WorkerGroup], None]
) -> None:
    for index, worker in enumerate(WORKERS):
        elsewhere.send(worker, Bye())
        elsewhere.send(f"worker_heartbeat-{index}", Log(f"a line of {worker}"), Bye(), after_s=0.5)
    end(elsewhere.group)
    for worker in WORKERS:
        assert (tmp_path / f"{worker}.log").read_text() == f"a line of {worker}\n"


def test_a_worker_that_does_not_leave_is_not_a_late_replacement(ready: Stage) -> None:
    ready.group.absent.add("worker-1")
    with pytest.raises(ClusterError, match=r"^worker-0 sent no message 'bye' within 10 s") as caught:
        ready.group.shut_down()
    assert not isinstance(caught.value, WorkerLostError)


def test_a_replacement_that_has_not_joined_ends_with_the_run(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = Stage(supervisor, tmp_path, command=("/bin/true",))
    supervisor.expect_exits()
    stage.set_up()
    stage.group.absent.add("worker-1")
    stage.send("worker-0", Bye())
    stage.group.shut_down()
    assert supervisor.workers.keys() == {"worker-0"}
    assert stage.heard("worker-1") == []


INTERRUPTED = Shutdown.of(Interrupted(signal.SIGINT, "stopped after step 3"))


def bye(worker: int, after_s: float) -> Event:
    def leave(stage: Stage) -> None:
        for name in (WORKERS[worker], f"worker_heartbeat-{worker}"):
            stage.send(name, Bye(), after_s=after_s)

    return leave


@pytest.mark.parametrize(
    ("events", "informed", "ended_s"),
    [
        ([bye(0, 0.5), bye(1, 0.25)], WORKERS, 0.5),
        ([bye(0, 0.5)], WORKERS, 2.0),
        ([bye(0, 0.5), lambda stage: stage.network.kill("worker-1")], WORKERS[:1], 0.5),
        ([bye(0, 0.5), lambda stage: reports(1, BROKEN)(stage) or fails(stage)], WORKERS[:1], 0.5),
        ([lambda stage: stage.send("worker-1", Hello("worker", 1, 1, "")), bye(0, 0.5), bye(1, 0.25)], WORKERS, 2.0),
    ],
    ids=["both end", "one does not answer", "one is gone", "one reported an error", "one breaks the protocol"],
)
def test_workers_of_other_hosts_learn_why_the_run_has_ended(
    elsewhere: Stage, events: Sequence[Event], informed: Sequence[str], ended_s: float
) -> None:
    for event in events:
        event(elsewhere)
    elsewhere.group.dismiss(INTERRUPTED)
    assert elsewhere.network.clock.now == ended_s
    assert [worker for worker in WORKERS if Shutdown in elsewhere.heard(worker)] == list(informed)


def test_silence_of_a_host_is_the_cause_of_connections_that_others_lost_before(elsewhere: Stage) -> None:
    elsewhere.beat(0, STEP, 7, *range(20))
    elsewhere.beat(1, STEP, 7)
    elsewhere.send("worker-0", Failed.of(LOSS), after_s=SILENCE_S / 2)
    with pytest.raises(WorkerLostError, match=r"^worker-1 is silent"):
        gather(elsewhere)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Interrupted(signal.SIGTERM, "after step 3"), Shutdown(143, "after step 3")),
        (ClusterError("worker-1 is silent"), Shutdown(7, "worker-1 is silent")),
        (KeyboardInterrupt(), Shutdown(130, "KeyboardInterrupt")),
        (ZeroDivisionError("a defect"), Shutdown(1, "a defect")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_workers_end_with_the_exit_code_of_the_run(error: BaseException, message: Shutdown) -> None:
    assert Shutdown.of(error) == message


class Interruption(FakeEndpoint):
    """An endpoint whose receive raises KeyboardInterrupt."""

    def receive(self, timeout_s: float) -> Received | None:
        raise KeyboardInterrupt


def press_ctrl_c(stage: Stage) -> None:
    stage.group.endpoint = Interruption(stage.network, identity("master-0"), peers=2)
    with pytest.raises(KeyboardInterrupt):
        stage.group.gather(WORKERS, Done)


def fail_in_a_step(stage: Stage) -> None:
    stage.send("worker-0", BROKEN)
    fails(stage)


def lose_a_worker(stage: Stage) -> None:
    stage.network.kill("worker-0")
    with pytest.raises(ClusterError, match="the peer has ended"):
        stage.group.send("worker-0", Run("p", 0))


@pytest.mark.parametrize("break_off", [press_ctrl_c, fail_in_a_step, lose_a_worker])
def test_nothing_is_sent_after_an_error(ready: Stage, break_off: Callable[[Stage], None]) -> None:
    break_off(ready)
    expected = "'run' was not sent to worker-1: after an error, start a new session"
    with pytest.raises(ClusterError, match=expected):
        ready.group.send("worker-1", Run("p", 1))
    with pytest.raises(ClusterError, match="'part' was not sent to worker-1: after an error, start a new session"):
        ready.group.send_tensors("worker-1", "p", 1, ["x"], lambda key: memoryview(b"1"))
    ready.group.shut_down()
    assert ready.heard("worker-1") == []
