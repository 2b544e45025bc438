"""Lost workers are replaced: the others keep their processes, and the results are those of an undisturbed session."""

import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Timer

import psutil
import pytest

from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.cluster.joining import MEMORY
from runner.engine.cluster.launchers import LOOPBACK, HostsLauncher, LocalLauncher
from runner.engine.cluster.processes import runner_command
from runner.engine.cluster.remote_plan import RemotePlan
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport import messages
from runner.engine.cluster.worker_group import WorkerGroup
from runner.engine.compile import program_plans
from runner.engine.compile.program import Program
from runner.errors import ClusterError, NotStartedAgainError, RunnerError, WorkerLostError
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.cluster.conftest import (
    PROGRAM,
    SERVED,
    SOURCE,
    Sessions,
    Start,
    expect_same_losses,
    in_process,
    losses,
    train,
    wait_for_spares,
)
from tests.engine.cluster.stage import SLEEPS, Stage
from tests.engine.cluster.test_worker import RESULT_OF_STEP_2
from tests.engine.cluster.transport.conftest import identity, next_of
from tests.engine.cluster.transport.fake_network import FakeEndpoint, Faults
from tests.engine.cluster.virtual_cluster import VirtualCluster
from tests.engine.run.launched_programs import expect_matching_transfers, pushed, tally
from tests.integration.command import processes_of, wait_until
from tests.strategies.networks import NETWORKS, workload_of
from tests.strategies.training import Weights


def lose(session: ClusterSession, process: psutil.Process, signum: int = signal.SIGKILL) -> WorkerLostError:
    """Send a signal to a process, and train until the session notices the loss."""
    process.send_signal(signum)
    with pytest.raises(WorkerLostError) as caught:
        _ = [train(session, step) for step in range(10_000)]
    return caught.value


def expect_survivors(before: dict[str, int], after: dict[str, int], *lost: str) -> None:
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} == set(lost)


@pytest.mark.parametrize(
    ("program", "name", "signum", "cause"),
    [
        (PROGRAM, "worker-1", signal.SIGKILL, "was killed by SIGKILL"),
        (PROGRAM, "worker-0", signal.SIGSTOP, "is stopped"),
        (SERVED, "ps-1", signal.SIGSEGV, "was killed by SIGSEGV"),
    ],
)
def test_lost_process_is_replaced_and_the_others_continue(
    sessions: Sessions, program: Program, name: str, signum: int, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sessions.new(program=program) as session:
        expected = losses(session)
        before = sessions.pids
        session.start_trace(["train"])
        process = psutil.Process(before[name])
        lost = lose(session, process, signum)
        assert (lost.worker, lost.cause, lost.by_chance) == (name, cause, signum != signal.SIGSEGV)
        assert ("; a signal has stopped the process; see the log " in str(lost)) == (signum == signal.SIGSTOP)
        monkeypatch.setattr(program_plans, "compile_placed", None)  # a call would raise TypeError
        recovered = session.recover(lost.worker, epoch=2)
        assert recovered.replaced == (name,)
        expect_survivors(before, sessions.pids, name)
        wait_until(lambda: not process.is_running(), "the end of the lost process, which may be frozen")
        with pytest.raises(RunnerError, match="no trace is being recorded"):
            session.stop_trace()
        expect_same_losses(losses(session), expected)
        session.start_trace(["train"])
        train(session, 0)
        timeline = session.stop_trace()
        expect_matching_transfers(timeline.spans)
        (run,) = timeline.runs
        assert {(span.number, span.step) for span in timeline.spans} == {(run.number, 0)}


def test_another_loss_during_a_replacement_is_recovered(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A survivor dies before the replacement of the first process has joined, then a replacement dies."""
    set_up = WorkerGroup.set_up
    victims = iter(["worker-0", "worker-1"])

    def disturbed(group: WorkerGroup, *arguments: object) -> None:
        if (victim := next(victims, "")) in group.supervisor.workers:
            psutil.Process(group.supervisor.workers[victim].pid).kill()
        set_up(group, *arguments)  # type: ignore[arg-type]

    with sessions.new() as session:
        expected = losses(session)
        lost = lose(session, sessions.worker(1))
        monkeypatch.setattr(WorkerGroup, "set_up", disturbed)
        for epoch, name in ((2, "worker-0"), (3, "worker-1")):
            with pytest.raises(WorkerLostError, match=rf"^{name} .* was killed by SIGKILL") as caught:
                session.recover(lost.worker, epoch)
            lost = caught.value
        assert session.recover(lost.worker, 4).replaced == ("worker-0", "worker-1")
        expect_same_losses(losses(session), expected)


THREE = SyncData(workers=3).build(workload_of(NETWORKS["dense"], Momentum(), batch_size=6))


@contextmanager
def paused(process: psutil.Process, seconds: float) -> Iterator[None]:
    """Stop a process now, and let it continue after some seconds, while the block runs."""
    process.suspend()
    timer = Timer(seconds, process.resume)
    timer.start()
    try:
        yield
    finally:
        timer.join()


@pytest.fixture(scope="module")
def expected_of_three(registry: Registry) -> list[Weights]:
    """Return the fetches of ``THREE``, run in this process."""
    with in_process(registry, THREE, {**SOURCE, "batch_size": 6}) as session:
        return losses(session)


@pytest.mark.parametrize(
    ("late", "after"),
    [
        (0, "a recovery"),
        (1, "init"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, "init"), (1, "a recovery"))),
        *(pytest.param(None, after, marks=pytest.mark.slow) for after in ("init", "a recovery")),
    ],
)
def test_loss_while_the_others_load_or_connect_is_recovered(
    sessions: Sessions, expected_of_three: list[Weights], late: int | None, after: str
) -> None:
    """late: index of a worker that loads the plan, or connects to a replacement, after the master noticed the loss."""
    with sessions.new({**SOURCE, "batch_size": 6}, program=THREE) as session:
        session.run("init")
        epoch = 2
        if after == "a recovery":
            lost = lose(session, sessions.worker(1))
            session.recover(lost.worker, epoch)
            session.run("init")
            epoch = 3
        before = sessions.pids
        sessions.worker(2).kill()
        with paused(sessions.worker(late), 0.6) if late is not None else nullcontext():
            with pytest.raises(WorkerLostError, match=r"^worker-2 "):
                train(session, 0)
            session.recover("worker-2", epoch)
        expect_survivors(before, sessions.pids, "worker-2")
        expect_same_losses(losses(session), expected_of_three)


def test_replacement_that_dies_before_it_joins_is_replaced(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    admits = WorkerGroup._admits
    killed = []

    def disturbed(group: WorkerGroup, worker: str, hello: messages.Hello) -> bool:
        if not killed:
            killed.append(worker)
            group.supervisor.workers[worker].kill()
            wait_until(lambda: group.supervisor.workers[worker].poll() is not None)
        return admits(group, worker, hello)

    with sessions.new() as session:
        expected = losses(session)
        lost = lose(session, sessions.worker(1))
        monkeypatch.setattr(WorkerGroup, "_admits", disturbed)
        with pytest.raises(WorkerLostError, match=r"^worker-1 .* was killed by SIGKILL"):
            session.recover(lost.worker, 2)
        session.recover("worker-1", 3)
        expect_same_losses(losses(session), expected)


def test_survivors_over_tcp_reach_the_new_address_of_a_replacement(sessions: Sessions) -> None:
    launcher = LocalLauncher(sessions.logs, 1, over_tcp=True)
    with sessions.new({**SOURCE, "batch_size": 6}, program=THREE, launcher=launcher) as session:
        expected = losses(session)
        for epoch, index in ((2, 1), (3, 0)):
            before = sessions.pids
            lost = lose(session, sessions.worker(index))
            assert session.recover(lost.worker, epoch).replaced == (f"worker-{index}",)
            expect_survivors(before, sessions.pids, f"worker-{index}")
            expect_same_losses(losses(session), expected)


def test_launched_clients_are_dropped_and_can_be_launched_again(sessions: Sessions) -> None:
    with sessions.new(None, program=tally()) as session:
        session.run("init")
        expected = len(pushed(session, rounds=9))
        before = sessions.pids
        sessions.worker(1).kill()
        with pytest.raises(WorkerLostError, match=r"^worker-1 "):
            pushed(session, rounds=10_000)
        session.recover("worker-1", epoch=2)
        expect_survivors(before, sessions.pids, "worker-1")
        session.run("init")
        endings = pushed(session, rounds=9)
        assert len(endings) == expected
        assert min(min(each.turns.values()) for each in endings) == 0, "turns are counted from the recovery"


def test_replacement_gets_only_the_needed_plans_before_the_run_goes_on(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, list[str]]] = []
    send = RemotePlan.send

    def noted(plan: RemotePlan, group: WorkerGroup) -> list[str]:
        sent.append((plan.name, send(plan, group)))
        return sent[-1][1]

    with sessions.new() as session:
        expected = losses(session)
        lost = lose(session, sessions.worker(1))
        monkeypatch.setattr(RemotePlan, "send", noted)
        session.recover(lost.worker, epoch=2)
        assert sent == [("train-1", ["worker-1"]), ("save-3", [])], "worker-0 saves"
        expect_same_losses(losses(session), expected)
        assert sent[2:] == [("init-0", ["worker-1"]), ("eval-2", ["worker-1"])]


def test_loss_while_a_replacement_loads_a_plan_is_recovered(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session may not know which workers have loaded the plan."""
    send = RemotePlan.send

    def disturbed(plan: RemotePlan, group: WorkerGroup) -> list[str]:
        if plan.name == "eval-2":
            sessions.worker(0).kill()
        return send(plan, group)

    with sessions.new() as session:
        expected = losses(session)
        lost = lose(session, sessions.worker(1))
        session.recover(lost.worker, epoch=2)
        with monkeypatch.context() as patched:
            patched.setattr(RemotePlan, "send", disturbed)
            with pytest.raises(WorkerLostError, match=r"^worker-0 "):
                losses(session)
        assert session.recover("worker-0", epoch=3).replaced == ("worker-0",)
        expect_same_losses(losses(session), expected)


LOADED = ("init-0", "train-1", "eval-2", "save-3")
READY = re.compile(r"the (.+) (?:is|are) ready")


@pytest.mark.parametrize("over_tcp", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_spare_process_takes_over(sessions: Sessions, over_tcp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_spares(monkeypatch)
    with sessions.new(launcher=LocalLauncher(sessions.logs, 1, spares=2, over_tcp=over_tcp)) as session:
        expected = losses(session)
        processes = {name: psutil.Process(pid) for name, pid in sessions.pids.items()}
        assert processes.keys() == {"worker-0", "worker-1", "spare-0", "spare-1"}
        lost = lose(session, processes["worker-1"])
        session.recover(lost.worker, epoch=2)
        supervised = session._group.supervisor.workers
        assert len(session._group.spares.started) == 1, "the start of another one would delay the run"
        session.start_spares()
        waited = {processes[name].pid: name for name in ("spare-0", "spare-1")}
        taken = waited.pop(supervised["worker-1"].pid)
        (other,) = waited.values()
        assert supervised["worker-0"].pid == processes["worker-0"].pid
        ready = READY.findall((sessions.logs / f"{taken}.log").read_text())[-5:]
        assert ready == ["input source", *(f"kernels of the plan {name}" for name in LOADED)]
        newest = psutil.Process(supervised[taken].pid)
        assert newest not in processes.values(), "a new spare process waits"
        expect_same_losses(losses(session), expected)
        while taken not in session._group.spares._ready(time.monotonic()):  # the newest one is still starting
            losses(session)
        processes[other].kill()
        lost = lose(session, processes[taken])
        assert lost.worker == "worker-1"
        session.recover(lost.worker, epoch=3)
        session.start_spares()
        assert supervised["worker-1"].pid == newest.pid, "the dead spare process was not used"
        assert len(processes_of(sessions.run_ids[-1])) == 4
        expect_same_losses(losses(session), expected)
    log = (sessions.logs / "worker-1.log").read_text()
    assert f"worker-1 has joined the run (pid {newest.pid})" in log


@pytest.mark.slow
def test_spare_process_that_a_user_has_started_takes_over(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_spares(monkeypatch)
    started: dict[str, psutil.Process] = {}

    def start_as_printed(text: str) -> None:
        what, command = text.splitlines()
        name, _, where = what.partition(": ")
        announced.append((name, re.sub(".* to (.*) with .*", r"\1", where)))
        process = subprocess.Popen([*runner_command(), *shlex.split(command)[1:]], stderr=subprocess.DEVNULL)
        processes.append(process)
        started[name] = psutil.Process(process.pid)

    announced, processes = list[tuple[str, str]](), list["subprocess.Popen[bytes]"]()
    hosts = {"worker-0": "a", "worker-1": "b", "spare-0": "c"}
    keys = sessions.logs / "keys"
    launcher = HostsLauncher(address=LOOPBACK, hosts=hosts, keys=keys, announce=start_as_printed, spares=1)
    with sessions.new(launcher=launcher) as session:
        expected = losses(session)
        survivor, spare = started["worker-0"], started["spare-0"]
        while not session._monitor.has_heard("worker-1"):
            train(session, 0)
        lost = lose(session, started["worker-1"], signal.SIGSTOP)
        assert lost.worker == "worker-1"
        assert "the host b may be stopped or disconnected" in str(lost)
        session.recover(lost.worker, epoch=2)
        session.start_spares()
        assert announced == [("worker-0", "a"), ("worker-1", "b"), ("spare-0", "c"), ("spare-0", "b")]
        assert started["spare-0"] != spare
        expect_same_losses(losses(session), expected)
        assert survivor.is_running()
        assert session._group.joined.named("worker-1") == "worker-1 on c"
    assert [process.wait(10.0) for process in processes] == [0, -signal.SIGKILL, 0, 0]
    assert not list(keys.iterdir())


@pytest.mark.parametrize("seed", range(12))
def test_messages_of_an_interrupted_step_are_dropped(start: Start, seed: int) -> None:
    """The step is interrupted at a random time; its messages may arrive later, also after the next step has begun."""
    with start(seed=seed, faults=Faults(delay_s=(0.0, 1.0))) as cluster:
        cluster.set_up()
        cluster.run("init")
        cluster.feed("run", {"rate": 0.5})
        cluster.send(messages.Run("run", 1), cluster.workers[: 1 + seed % 2])
        cluster.endpoint.receive(seed / 3)
        recover(cluster)
        expect_step_2(cluster)
        assert not any(mailbox._tensors for mailbox in cluster.mailboxes.values())


def recover(cluster: VirtualCluster, workers: list[str] | None = None, *lost: str) -> None:
    """Begin epoch 2 on the given workers, by default all."""
    cluster.endpoint.advance(2)
    cluster.send(messages.Abandon(2, lost), workers)
    cluster.answers(messages.Abandoned, workers)


def expect_step_2(cluster: VirtualCluster) -> None:
    assert cluster.run("run", 2, {"rate": 0.5})["new"].tolist() == RESULT_OF_STEP_2


def test_worker_that_cannot_reach_another_one_waits_for_the_recovery(fed: VirtualCluster) -> None:
    fed.network.kill("worker-1")
    fed.send(messages.Run("run", 1), ["worker-0"])
    failed = fed.answers(messages.Failed, ["worker-0"])["worker-0"]
    assert "could not send 'tensors' to worker-1: the peer has ended" in failed.text
    fed.network.present.add("worker-1")
    recover(fed)
    expect_step_2(fed)


def test_worker_that_waits_for_a_recovery_learns_a_new_address(fed: VirtualCluster) -> None:
    fed.network.kill("worker-1")
    fed.send(messages.Run("run", 1), ["worker-0"])
    fed.answers(messages.Failed, ["worker-0"])
    fed.send(messages.Moved({"worker-1": "tcp://10.0.0.9:5"}), ["worker-0"])
    recover(fed, ["worker-0"], "worker-1")
    fed.send(messages.Run("run", 2), ["worker-0"])
    failed = fed.answers(messages.Failed, ["worker-0"])["worker-0"]
    assert failed.text == "worker-0 cannot reach worker-1: no process listens on tcp://10.0.0.9:5"


def test_worker_connects_again_to_a_process_that_was_replaced(start: Start) -> None:
    with start() as cluster:
        cluster.set_up()
        cluster.run("init")
        cluster.run("run", 1, {"rate": 0.5})
        admission = cluster.endpoints["worker-1"]._admission
        assert "worker-0" in {caller.name for caller in admission._callers.values()}
        cluster.endpoints["worker-1"].advance(2, ["worker-0"])  # like a new process, which knows no connection
        recover(cluster, ["worker-0"], "worker-1")
        cluster.send(messages.Run("run", 2), ["worker-0"])
        assert cluster.endpoint.receive(1.0) is None
        assert "worker-0" in {caller.name for caller in admission._callers.values()}
        assert cluster.mailboxes["worker-1"]._tensors


def test_traces_end_with_a_recovery(cluster: VirtualCluster) -> None:
    cluster.run("init")
    cluster.load("run")
    cluster.send(messages.StartTrace(), None, ["run"])
    cluster.run("run", 1, {"rate": 0.5})
    recover(cluster)
    cluster.send(messages.StartTrace(), None, ["run"])
    expect_step_2(cluster)


def replace_worker_1(stage: Stage) -> None:
    """Replace worker-1 in epoch 2, which worker-0 has begun."""
    stage.peers["worker-0"].advance(2)  # type: ignore[attr-defined]
    stage.send("worker-0", messages.Abandoned())
    assert stage.group.replace("worker-1", 2) == ["worker-1"]
    stage.heard("worker-0")


def joins_again(stage: Stage, facts: dict[str, str], own_address: str) -> FakeEndpoint:
    """Replace worker-1 in epoch 2; return the endpoint of its new process, whose hello is on the wire."""
    replace_worker_1(stage)
    new = stage.network.endpoint(identity("worker-1", epoch=2), peers=2)
    new.connect(messages.MASTER, facts=facts, own_address=own_address)
    return new


def test_others_learn_the_address_of_a_replacement(elsewhere: Stage) -> None:
    new = joins_again(elsewhere, {}, "tcp://10.0.0.9:5")
    elsewhere.group.set_up(lambda addresses: b"", ["worker-1"])
    assert next_of(elsewhere.peers["worker-0"]).message == messages.Moved({"worker-1": "tcp://10.0.0.9:5"})
    assert [next_of(new).message.kind for _ in range(3)] == ["hello", "welcome", "setup"]


LATE = "^worker-1 did not join the run within 60 s; (see|check)"


def hang(supervisor: Supervisor, folder: Path, by_command: bool) -> Stage:
    """Replace worker-1 by a process that never joins, started by the supervisor or by a command such as ``srun``."""
    stage = Stage(supervisor, folder).set_up()
    given = SLEEPS, folder / "hangs.log", dict[str, str]()
    stage.group.start = lambda names, epoch, hosts: (
        supervisor.start("srun-2", *given, list(names)) if by_command else supervisor.start("worker-1", *given)
    )
    replace_worker_1(stage)
    return stage


@pytest.mark.parametrize("by_command", [False, True])
@pytest.mark.parametrize("suspended_s", [0.0, 600.0])
def test_replacement_that_hangs_before_it_joins_is_lost_while_the_others_work(
    supervisor: Supervisor, tmp_path: Path, suspended_s: float, by_command: bool
) -> None:
    """The master may be suspended in the meantime. Heartbeats of the other worker arrive until the loss is noticed."""
    stage = hang(supervisor, tmp_path, by_command)
    stage.network.clock.advance(suspended_s)
    stage.beat(0, messages.STEP, 7, *range(100))
    with pytest.raises(WorkerLostError, match=LATE) as lost:
        stage.group.gather(["worker-0"], messages.Done)
    assert (lost.value.worker, lost.value.by_chance) == ("worker-1", True)
    assert 60.0 < stage.network.clock.now - suspended_s < 61.0


@pytest.mark.parametrize("by_command", [False, True])
def test_replacement_that_hangs_while_the_others_wait_is_lost_or_not_started(
    supervisor: Supervisor, tmp_path: Path, by_command: bool
) -> None:
    """A command may wait for a node that the cluster does not have, so the run can go on with fewer workers."""
    stage = hang(supervisor, tmp_path, by_command)
    stage.beat(0, messages.IDLE, 7, *range(100))
    with pytest.raises(ClusterError, match=LATE) as caught:
        stage.group.set_up(lambda addresses: b"", ["worker-1"])
    assert isinstance(caught.value, NotStartedAgainError if by_command else WorkerLostError)


def test_worker_whose_plans_are_in_shared_memory_is_not_replaced_from_another_host(elsewhere: Stage) -> None:
    """No other process joins in time, so one worker is left."""
    joins_again(elsewhere, {MEMORY: "of another host"}, "tcp://10.0.0.9:5")
    with pytest.raises(NotStartedAgainError, match=f"{LATE} that it was started and that its host") as caught:
        elsewhere.group.set_up(lambda addresses: b"", ["worker-1"])
    assert caught.value.remaining == 1
    ((refused, reason),) = elsewhere.group.endpoint.refusals  # type: ignore[attr-defined]
    assert refused == "worker-1"
    assert "worker-1 shared memory with the master: start its replacement on the host of the master" in reason
