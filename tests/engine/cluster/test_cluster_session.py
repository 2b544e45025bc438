"""Sessions on real worker processes: results, failures and cleanup."""

from __future__ import annotations

import secrets
import signal
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from runner.data.source import source_from_config
from runner.engine.cluster import worker_group
from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.cluster.processes import Supervisor
from runner.engine.cluster.transport.address import inbox_path
from runner.engine.cluster.transport.heartbeat_monitor import HeartbeatMonitor
from runner.engine.cluster.transport.messages import IDLE, STEP
from runner.engine.cluster.transport.private_directory import PrivateDirectory
from runner.engine.compile.program import Program
from runner.engine.graph.device import Cluster, Device, local_cluster, server_device, worker_device
from runner.engine.run.interleaving import Ending, Recorded
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import Session
from runner.errors import ClusterError, ConfigError, ResourceError, RunnerError
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.run.launched_programs import pushed, tally
from tests.engine.run.matching_spans import expect_matching_transfers
from tests.integration.command import Command, processes_of, wait_until
from tests.strategies.networks import EXAMPLE_SHAPE, NETWORKS, TEST_BATCH, task_of
from tests.strategies.training import Weights, expect_same_bits

Array = NDArray[Any]

WORKERS = 2
BATCH = 5
PROGRAM = SyncData(workers=WORKERS).build(task_of(NETWORKS["dense"], Momentum(), batch_size=BATCH))
SOURCE: Mapping[str, Any] = {
    "config": {"name": "synthetic", "shape": list(EXAMPLE_SHAPE), "classes": 3, "examples": 16, "test_examples": 16},
    "seed": 1,
    "batch_size": BATCH,
    "eval_batch_size": TEST_BATCH,
    "dtype": "float64",
}


class Sessions:
    """Creates sessions, each of a separate run, and finds their processes and directories."""

    def __init__(self, registry: Registry, logs: Path) -> None:
        self.logs = logs
        self.run_ids: list[str] = []
        self._registry = registry

    def new(
        self, source: Mapping[str, Any] | None = SOURCE, *, program: Program = PROGRAM, **options: Any
    ) -> ClusterSession:
        """A session that has not been entered."""
        self.run_ids.append(secrets.token_hex(8))
        own: dict[str, Any] = {"run_id": self.run_ids[-1], "epoch": 1, "logs": self.logs, "threads": 1}
        cluster = local_cluster(program.workers, program.servers)
        return ClusterSession(program, cluster, self._registry, source, **(own | options))

    def worker(self, index: int, role: str = "worker") -> psutil.Process:
        """A worker or parameter-server process of the newest session."""
        processes = map(psutil.Process, processes_of(self.run_ids[-1]))
        wanted = (role, str(index))
        (found,) = (each for each in processes if (_option(each, "--role"), _option(each, "--index")) == wanted)
        return found

    @property
    def directory(self) -> Path:
        """The private directory of the newest session."""
        return inbox_path(_option(self.worker(0), "--address")).parent


def _option(process: psutil.Process, name: str) -> str:
    arguments = process.cmdline()
    return arguments[arguments.index(name) + 1]


@pytest.fixture
def sessions(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    """Sessions of one test, after which no process or directory may be left."""
    directories: list[Path] = []
    create = PrivateDirectory.create

    def noted(parent: Path | None = None) -> PrivateDirectory:
        directory = create(parent)
        directories.append(directory.path)
        return directory

    monkeypatch.setattr(PrivateDirectory, "create", noted)
    sessions = Sessions(registry, tmp_path)
    yield sessions
    expect_nothing_left(sessions, directories)


def expect_nothing_left(sessions: Sessions, directories: Sequence[Path]) -> None:
    assert [processes_of(run_id) for run_id in sessions.run_ids] == [[]] * len(sessions.run_ids)
    assert len(directories) == len(sessions.run_ids)
    assert [path for path in directories if path.exists()] == []


def train(session: Session, step: int) -> dict[str, Array]:
    """Run one step with a falling rate."""
    feeds = {"step": np.int64(step), "learning_rate": np.float64(0.1 / (1 + step))}
    return session.run("train", step=step, feeds=feeds)


def losses(session: Session, steps: int = 3) -> list[Weights]:
    """All fetches of a short run."""
    session.run("init")
    fetched: list[Weights] = [train(session, step) for step in range(steps)]
    fetched.append(session.run("eval", step=1, feeds={"step": np.int64(1)}))
    fetched.append(session.run("save"))
    return fetched


@pytest.fixture(scope="module")
def expected(registry: Registry) -> tuple[list[Weights], LocalSession]:
    """The fetches of the same program in this process, and its session."""
    with (
        source_from_config(**SOURCE) as source,
        closing(LocalSession(PROGRAM, local_cluster(WORKERS), registry, source)) as session,
    ):
        return losses(session), session


@pytest.fixture(scope="module")
def shared(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClusterSession, Sessions]]:
    """One session for all tests that leave it usable."""
    sessions = Sessions(registry, tmp_path_factory.mktemp("logs"))
    with sessions.new() as session:
        directory = sessions.directory
        yield session, sessions
    expect_nothing_left(sessions, [directory])


@pytest.fixture
def session(shared: tuple[ClusterSession, Sessions]) -> ClusterSession:
    return shared[0]


def expect_same_losses(found: list[Weights], expected: list[Weights]) -> None:
    for mine, other in zip(found, expected, strict=True):
        expect_same_bits(mine, other)


def test_workers_compute_the_result_of_one_process(
    session: ClusterSession, expected: tuple[list[Weights], LocalSession]
) -> None:
    before = session.sent_bytes()
    expect_same_losses(losses(session), expected[0])
    sent = [after - earlier for after, earlier in zip(session.sent_bytes(), before, strict=True)]
    assert sent == expected[1].sent_bytes()
    assert min(sent) > 0


def test_clients_of_one_signature_read_their_own_inputs(sessions: Sessions, registry: Registry) -> None:
    scoring = PROGRAM.clients["eval"]
    inputs = tuple(replace(slot, split="train") for slot in scoring.inputs)
    other = replace(scoring, name="other", inputs=inputs)
    program = replace(PROGRAM, clients={**PROGRAM.clients, "other": other})
    found = []
    with source_from_config(**{**SOURCE, "batch_size": TEST_BATCH}) as source:
        local = closing(LocalSession(program, local_cluster(WORKERS), registry, source))
        remote = sessions.new({**SOURCE, "batch_size": TEST_BATCH}, program=program)
        for opened in (local, remote):
            with opened as session:
                session.run("init")
                feeds = {"step": np.int64(0)}
                found.append([session.run(client, feeds=feeds) for client in ("eval", "other", "eval")])
    expect_same_losses(*found)
    assert not np.array_equal(found[0][0]["labels"], found[0][1]["labels"])


def test_restore_undoes_training(session: ClusterSession) -> None:
    session.run("init")
    train(session, 0)
    saved = session.run("save")
    after = train(session, 1)
    session.run("restore", feeds=saved)
    expect_same_bits(session.run("save"), saved)
    expect_same_bits(train(session, 1), after)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"learning_rate": np.ones(2)}, r"^feed replica_0/learning_rate:0: came float64\[2\], expected float64\[\]$"),
        ({"learning_rate": np.float32(0.1)}, r"^feed replica_0/learning_rate:0: came float32\[\], expected float64"),
        ({"momentum": 0.9}, r"client 'train' was fed \['learning_rate', 'momentum', 'step'\], but takes"),
    ],
)
def test_wrong_feed_is_refused_and_the_session_continues(
    session: ClusterSession, expected: tuple[list[Weights], LocalSession], feeds: Mapping[str, Any], message: str
) -> None:
    session.run("init")
    right = {"step": np.int64(0), "learning_rate": np.float64(0.1)}
    with pytest.raises(RunnerError, match=message):
        session.run("train", feeds={**right, **feeds})
    expect_same_bits(train(session, 0), expected[0][0])


def test_unknown_client_is_refused(session: ClusterSession) -> None:
    with pytest.raises(RunnerError, match="client 'predict': expected one of eval, init, restore, save, train"):
        session.run("predict")


def test_trace_has_the_steps_of_its_client_on_every_worker(session: ClusterSession) -> None:
    session.run("init")
    with pytest.raises(RunnerError, match="no trace is being recorded"):
        session.stop_trace()
    session.start_trace(["train"])
    with pytest.raises(RunnerError, match="a trace of eval was requested while another one is being recorded"):
        session.start_trace(["eval"])
    train(session, 0)
    session.run("eval", step=1, feeds={"step": np.int64(1)})
    train(session, 1)
    timeline = session.stop_trace()
    train(session, 2)
    expect_matching_transfers(timeline.spans)
    assert {(span.process, span.step) for span in timeline.spans} == {
        (worker, step) for worker in ("worker-0", "worker-1") for step in (0, 1)
    }
    assert [(run.process, run.client, run.step) for run in timeline.runs] == [("master-0", "train", k) for k in (0, 1)]
    # Runs of other tests in the same session count too.
    numbers = {run.step: run.number for run in timeline.runs}
    assert numbers[1] == numbers[0] + 1
    assert {(span.client, span.step, span.number) for span in timeline.spans} == {
        ("train", step, number) for step, number in numbers.items()
    }
    assert all(run.begin_ns < run.end_ns for run in timeline.runs)


def test_running_session_has_only_sockets_in_its_directory(shared: tuple[ClusterSession, Sessions]) -> None:
    session, sessions = shared
    session.run("init")
    train(session, 0)
    directory = sessions.directory
    assert {path.name for path in directory.iterdir()} == {"master-0", "worker-0", "worker-1"}
    assert all(stat.S_ISSOCK(path.stat().st_mode) for path in directory.iterdir())
    assert f"{directory}/arena-" in Path("/proc/self/maps").read_text()


def test_memory_libraries_and_command_lines(
    shared: tuple[ClusterSession, Sessions], expected: tuple[list[Weights], LocalSession]
) -> None:
    session, sessions = shared
    losses(session)
    assert set(session.peak_memory_bytes()) == {"master", "worker-0", "worker-1"}
    assert min(session.peak_memory_bytes().values()) > 10_000_000
    assert session.libraries() == expected[1].libraries()
    assert {path.name for path in sessions.logs.iterdir()} == {"worker-0.log", "worker-1.log"}
    secret = session._identity.token
    for index in range(WORKERS):
        assert secret not in " ".join(sessions.worker(index).cmdline())
        assert secret not in sessions.worker(index).environ().values()


def test_two_sessions_at_once(
    sessions: Sessions, expected: tuple[list[Weights], LocalSession], session: ClusterSession
) -> None:
    with sessions.new() as other:
        for each in (session, other):
            each.run("init")
        for step in range(3):
            for each in (session, other):
                expect_same_bits(train(each, step), expected[0][step])
    expect_same_bits(session.run("save"), expected[0][-1])


def test_closed_session_has_no_workers_and_no_shared_memory(sessions: Sessions) -> None:
    with sessions.new() as session:
        session.run("init")
        directory, libraries = sessions.directory, session.libraries()
        session.close()
        assert not directory.exists()
        assert processes_of(sessions.run_ids[-1]) == []
        assert str(directory) not in Path("/proc/self/maps").read_text()
        with pytest.raises(RunnerError, match="the session has no workers: use it inside its `with` block"):
            session.run("init")
        session.close()
    assert session.libraries() == libraries
    assert (sessions.logs / "worker-0.log").exists()


def test_workers_exit_by_themselves_at_the_end(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisors: list[Supervisor] = []

    class Noted(Supervisor):
        def __enter__(self) -> Supervisor:
            supervisors.append(self)
            return super().__enter__()

    monkeypatch.setattr(worker_group, "Supervisor", Noted)
    with sessions.new() as session:
        session.run("init")
    (supervisor,) = supervisors
    assert [worker.exit and worker.exit.code for worker in supervisor.workers.values()] == [0, 0]


def test_exception_inside_the_block_leaves_nothing(sessions: Sessions) -> None:
    def fail(session: ClusterSession) -> None:
        session.run("init")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), sessions.new() as session:
        fail(session)


def test_failed_start_leaves_nothing(sessions: Sessions, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot start worker-0 .*missing/worker-0\.log: No such file"):
        sessions.new(logs=tmp_path / "missing").__enter__()


def test_start_that_fails_half_way_leaves_nothing(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "worker-1.log").mkdir()
    with pytest.raises(ResourceError, match=r"cannot start worker-1 .*worker-1\.log: Is a directory"):
        sessions.new().__enter__()


def test_source_error_keeps_its_class_and_names_the_worker(sessions: Sessions) -> None:
    source = {**SOURCE, "config": {"name": "no-such-data"}}
    expected = r"^worker-\d: unknown dataset: data.name is 'no-such-data'"
    with pytest.raises(ConfigError, match=expected), sessions.new(source) as session:
        session.run("init")


@contextmanager
def suspended(process: psutil.Process) -> Iterator[None]:
    """Stop a process inside the block."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def test_stopped_worker_is_silent_and_ended(sessions: Sessions) -> None:
    def stop_and_train(session: ClusterSession) -> None:
        session.run("init")
        sessions.worker(1).suspend()
        train(session, 0)

    monitor = HeartbeatMonitor(silence_s=2.0)
    expected = r"^worker-1 is silent: no heartbeat for .* the stacks of its threads, unless the process is stopped, "
    with pytest.raises(ClusterError, match=expected), sessions.new(monitor=monitor) as session:
        stop_and_train(session)


class Listening(HeartbeatMonitor):
    """Stores the last heartbeat of each worker."""

    def __init__(self, limits_s: Mapping[str, float], silence_s: float) -> None:
        super().__init__(limits_s, silence_s)
        self.last: dict[str, str] = {}

    def heartbeat(self, worker: str, section: str, step: int, now: float) -> None:
        self.last[worker] = section
        super().heartbeat(worker, section, step, now)


def test_stuck_worker_logs_its_stack(sessions: Sessions) -> None:
    """Worker 0 waits for worker 1, which is stopped while it is idle."""
    monitor = Listening({STEP: 2.0}, silence_s=1000.0)
    with sessions.new(monitor=monitor) as session:
        session.run("init")
        train(session, 3)
        while monitor.last.get("worker-1") != IDLE:
            # Only worker 0 runs "save"; meanwhile the master reads heartbeats.
            session.run("save")
        expected = "worker-0 is stuck: section 'step' at step 4 has taken"
        with suspended(sessions.worker(1)), pytest.raises(ClusterError, match=expected):
            train(session, 4)
        assert "mailbox.py" in (sessions.logs / "worker-0.log").read_text()


SERVED = SyncData(workers=WORKERS, combine="parameter_server", servers=2).build(
    task_of(NETWORKS["dense"], Momentum(clip_norm=0.5), batch_size=BATCH)
)


def test_parameter_servers_are_separate_processes(sessions: Sessions, registry: Registry) -> None:
    cluster = local_cluster(WORKERS, servers=2)
    with source_from_config(**SOURCE) as source, closing(LocalSession(SERVED, cluster, registry, source)) as local:
        expected, expected_sent = losses(local), local.sent_bytes()
    with sessions.new(program=SERVED) as session:
        expect_same_losses(losses(session), expected)
        assert session.sent_bytes() == expected_sent
        assert min(expected_sent) > 0
        names = {"worker-0", "worker-1", "ps-0", "ps-1"}
        assert set(session.peak_memory_bytes()) == {"master", *names}
        assert {path.name for path in sessions.logs.iterdir()} == {f"{name}.log" for name in names}


def test_recorded_turns_replay_launched_clients_bit_for_bit(sessions: Sessions, registry: Registry) -> None:
    program = tally()
    with sessions.new(None, program=program) as session:
        session.run("init")
        told = pushed(session, rounds=9)
        total, sent = session.run("save"), session.sent_bytes()
    record = Recorded([Ending(each.client, each.step, each.turns) for each in told])
    with closing(LocalSession(program, local_cluster(2, 1), registry, interleaving=record)) as replayed:
        replayed.run("init")
        for mine, other in zip(pushed(replayed, rounds=9), told, strict=True):
            assert (mine.client, mine.step, mine.turns) == (other.client, other.step, other.turns)
            expect_same_bits(mine.fetches, other.fetches)
        expect_same_bits(replayed.run("save"), total)
        assert replayed.sent_bytes() == sent


def test_no_client_runs_or_loads_while_others_are_launched(sessions: Sessions) -> None:
    with sessions.new(None, program=tally()) as session:
        session.run("init")
        with pytest.raises(RunnerError, match="no client is under way: launch one first"):
            session.finished()
        with pytest.raises(RunnerError, match="client 'save' was launched, but is not deferred: run it"):
            session.launch("save")
        session.launch("work_0")
        with pytest.raises(RunnerError, match="client 'work_0' was launched, but is under way"):
            session.launch("work_0")
        with pytest.raises(
            RunnerError, match="client 'save' was run while work_0 are under way: wait until they have finished"
        ):
            session.run("save")
        with pytest.raises(
            RunnerError, match="client 'save' was loaded while work_0 are under way: wait until they have finished"
        ):
            session._load(session._program.clients["save"])
        assert session.finished().client == "work_0"
        session.run("save")


def test_trace_begins_and_ends_while_clients_run(sessions: Sessions) -> None:
    with sessions.new(None, program=tally()) as session:
        session.run("init")
        session.launch("work_0", step=7)
        session.start_trace(["work_0", "push_0"])
        assert session.finished().client == "work_0"
        session.launch("work_0", step=8)
        session.launch("push_0", step=9)
        told = [session.finished(), session.finished()]
        session.launch("work_0", step=10)
        timeline = session.stop_trace()
        # Clients that finished while spans were collected are reported afterwards.
        told.append(session.finished())
        assert sorted((each.client, each.step) for each in told) == [("push_0", 9), ("work_0", 8), ("work_0", 10)]
        assert {(run.client, run.number, run.step) for run in timeline.runs} == {
            ("work_0", 0, 7),
            ("work_0", 1, 8),
            ("push_0", 0, 9),
        }
        assert {("work_0", 1, 8), ("push_0", 0, 9)} <= {(s.client, s.number, s.step) for s in timeline.spans}
        expect_matching_transfers([span for span in timeline.spans if span.client == "push_0"])
        session.run("save")


def test_dead_worker_is_named_while_clients_run(sessions: Sessions) -> None:
    with sessions.new(None, program=tally()) as session:
        session.run("init")
        session.launch("work_0")
        session.finished()
        session.launch("work_1")
        session.finished()
        sessions.worker(1).kill()
        with pytest.raises(ClusterError, match=r"^worker-1 "):
            pushed(session, rounds=1000)


TRAINING = f"""
import sys
from pathlib import Path
from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.graph.device import local_cluster
from runner.engine.run.kernel_table import load_kernels
from runner.engine.cluster.transport.heartbeat_monitor import HeartbeatMonitor
from tests.engine.cluster.test_cluster_session import PROGRAM, SOURCE, train

run = dict(run_id=sys.argv[1], epoch=1, logs=Path(sys.argv[2]), threads=1, monitor=HeartbeatMonitor(silence_s=3.0))
with ClusterSession(PROGRAM, local_cluster({WORKERS}), load_kernels(), SOURCE, **run) as session:
    session.run("init")
    while not Path(sys.argv[2], "enough").exists():
        train(session, 0)
        Path(sys.argv[2], "begun").touch()
"""
"""The program of a master, which trains until the file ``enough`` exists."""


def test_run_stopped_as_a_whole_continues(tmp_path: Path) -> None:
    """A debugger or a paused container stops the master and its workers; a worker may continue last."""
    run_id = secrets.token_hex(8)
    command = Command(Path(__file__).parents[2], run_id, str(tmp_path), executable=(sys.executable, "-c", TRAINING))
    try:
        wait_until((tmp_path / "begun").exists, "the session has begun")
        workers = command.workers()
        for worker in workers:
            worker.suspend()
        time.sleep(0.5)
        command.send(signal.SIGSTOP)
        time.sleep(3.5)
        command.send(signal.SIGCONT)
        time.sleep(0.5)
        for worker in workers:
            worker.resume()
        (tmp_path / "enough").touch()
        assert command.finish() == 0, command.errors
        assert len(workers) == WORKERS
    finally:
        command.kill()
    assert processes_of(run_id) == []


def save(session: Session, times: int) -> None:
    """Run steps in which only worker 0 participates."""
    for _ in range(times):
        session.run("save")


def test_killed_worker_is_noticed_while_another_answers(sessions: Sessions) -> None:
    with sessions.new() as session:
        session.run("init")
        session.run("save")
        sessions.worker(1).kill()
        with pytest.raises(ClusterError, match=r"^worker-1 \(pid \d+\) was killed by SIGKILL"):
            save(session, times=10_000)


def test_stopped_parameter_server_is_named(sessions: Sessions) -> None:
    monitor = Listening({}, silence_s=2.0)
    with sessions.new(program=SERVED, monitor=monitor) as session:
        session.run("init")
        assert set(monitor.last) <= {"worker-0", "worker-1", "ps-0", "ps-1"}
        with (
            suspended(sessions.worker(1, role="ps")),
            pytest.raises(ClusterError, match=r"^ps-1 is silent: no heartbeat for "),
        ):
            train(session, 0)


def test_two_devices_of_one_process_are_refused(registry: Registry, tmp_path: Path) -> None:
    one_worker = Cluster((Device(worker_device(0)), Device("/job:worker/task:0/device:cpu:1")))
    skipping = Cluster((Device(worker_device(0)), Device(worker_device(2))))
    second_server = Cluster((Device(worker_device(0)), Device(server_device(1))))
    for cluster, names in (
        (one_worker, "worker-0, worker-1"),
        (skipping, "worker-0, worker-1"),
        (second_server, "worker-0, ps-0"),
    ):
        with pytest.raises(ValueError, match=f"expected one device for each of {names}"):
            ClusterSession(PROGRAM, cluster, registry, None, run_id="r", epoch=1, logs=tmp_path, threads=1)
