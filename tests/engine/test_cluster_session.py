"""Sessions on real worker processes: what they compute, how they fail, and that nothing is left behind."""

from __future__ import annotations

import secrets
import stat
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
from runner.engine import worker_group
from runner.engine.cluster_session import ClusterSession
from runner.engine.device import Cluster, Device, local_cluster, server_device, worker_device
from runner.engine.interleaving import Ending, Recorded
from runner.engine.local_session import LocalSession
from runner.engine.processes import Supervisor
from runner.engine.program import Program
from runner.engine.session import Session
from runner.engine.transport.address import inbox_path
from runner.engine.transport.heartbeat_monitor import HeartbeatMonitor
from runner.engine.transport.messages import IDLE, STEP
from runner.engine.transport.private_directory import PrivateDirectory
from runner.errors import ClusterError, ConfigError, ResourceError, RunnerError
from runner.kernels.registry import Registry
from runner.optimizers.momentum import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.launched_programs import pushed, tally
from tests.engine.matching_spans import expect_matching_transfers
from tests.integration.command import processes_of
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
    """Makes sessions, each of a run of its own, and knows what they have on this machine."""

    def __init__(self, registry: Registry, logs: Path) -> None:
        self.logs = logs
        self.run_ids: list[str] = []
        self._registry = registry

    def new(
        self, source: Mapping[str, Any] | None = SOURCE, *, program: Program = PROGRAM, **options: Any
    ) -> ClusterSession:
        """A session that was not entered yet."""
        self.run_ids.append(secrets.token_hex(8))
        own: dict[str, Any] = {"run_id": self.run_ids[-1], "epoch": 1, "logs": self.logs, "threads": 1}
        cluster = local_cluster(program.workers, program.servers)
        return ClusterSession(program, cluster, self._registry, source, **(own | options))

    def worker(self, index: int, role: str = "worker") -> psutil.Process:
        """A worker process of the session that was made last, or a parameter server."""
        processes = map(psutil.Process, processes_of(self.run_ids[-1]))
        wanted = (role, str(index))
        (found,) = (each for each in processes if (_option(each, "--role"), _option(each, "--index")) == wanted)
        return found

    @property
    def directory(self) -> Path:
        """Where the sockets of the session that was made last are."""
        return inbox_path(_option(self.worker(0), "--address")).parent


def _option(process: psutil.Process, name: str) -> str:
    arguments = process.cmdline()
    return arguments[arguments.index(name) + 1]


@pytest.fixture
def sessions(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    """Sessions of one test; after it none of their processes and directories may be left."""
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
    """One step; the rates fall, as in a run."""
    feeds = {"step": np.int64(step), "learning_rate": np.float64(0.1 / (1 + step))}
    return session.run("train", step=step, feeds=feeds)


def course(session: Session, steps: int = 3) -> list[Weights]:
    """Everything a short run fetches."""
    session.run("init")
    fetched: list[Weights] = [train(session, step) for step in range(steps)]
    fetched.append(session.run("eval", step=1, feeds={"step": np.int64(1)}))
    fetched.append(session.run("save"))
    return fetched


@pytest.fixture(scope="module")
def expected(registry: Registry) -> tuple[list[Weights], LocalSession]:
    """What the same program fetches in this process, and the session that did it."""
    with (
        source_from_config(**SOURCE) as source,
        closing(LocalSession(PROGRAM, local_cluster(WORKERS), registry, source)) as session,
    ):
        return course(session), session


@pytest.fixture(scope="module")
def shared(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClusterSession, Sessions]]:
    """One session for all tests that leave it as usable as it was; it is closed well and leaves nothing."""
    sessions = Sessions(registry, tmp_path_factory.mktemp("logs"))
    with sessions.new() as session:
        directory = sessions.directory
        yield session, sessions
    expect_nothing_left(sessions, [directory])


@pytest.fixture
def session(shared: tuple[ClusterSession, Sessions]) -> ClusterSession:
    return shared[0]


def expect_same_course(found: list[Weights], expected: list[Weights]) -> None:
    for mine, other in zip(found, expected, strict=True):
        expect_same_bits(mine, other)


def test_workers_compute_what_one_process_computes(
    session: ClusterSession, expected: tuple[list[Weights], LocalSession]
) -> None:
    before = session.sent_bytes()
    expect_same_course(course(session), expected[0])
    sent = [after - earlier for after, earlier in zip(session.sent_bytes(), before, strict=True)]
    assert sent == expected[1].sent_bytes()
    assert min(sent) > 0


def test_clients_of_one_plan_read_each_its_own_inputs(sessions: Sessions, registry: Registry) -> None:
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
    expect_same_course(*found)
    assert not np.array_equal(found[0][0]["labels"], found[0][1]["labels"])


def test_restored_variables_are_those_that_were_saved(session: ClusterSession) -> None:
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
def test_a_wrong_feed_is_named_and_does_no_harm(
    session: ClusterSession, expected: tuple[list[Weights], LocalSession], feeds: Mapping[str, Any], message: str
) -> None:
    session.run("init")
    right = {"step": np.int64(0), "learning_rate": np.float64(0.1)}
    with pytest.raises(RunnerError, match=message):
        session.run("train", feeds={**right, **feeds})
    expect_same_bits(train(session, 0), expected[0][0])


def test_an_unknown_client_is_refused_with_those_there_are(session: ClusterSession) -> None:
    with pytest.raises(RunnerError, match="client 'predict': the program has eval, init, restore, save, train"):
        session.run("predict")


def test_a_trace_holds_the_steps_of_its_client_on_every_worker(session: ClusterSession) -> None:
    session.run("init")
    with pytest.raises(RunnerError, match="no trace is being recorded"):
        session.stop_trace()
    session.start_trace("train")
    with pytest.raises(RunnerError, match="a trace of 'eval' was asked for while another is being recorded"):
        session.start_trace("eval")
    train(session, 0)
    session.run("eval", step=1, feeds={"step": np.int64(1)})
    train(session, 1)
    timeline = session.stop_trace()
    train(session, 2)
    expect_matching_transfers(timeline.spans)
    assert {(span.process, span.step) for span in timeline.spans} == {
        (worker, step) for worker in ("worker-0", "worker-1") for step in (0, 1)
    }
    assert [(step.process, step.step) for step in timeline.steps] == [("master-0", 0), ("master-0", 1)]
    assert all(step.begin_ns < step.end_ns for step in timeline.steps)


def test_while_it_runs_only_sockets_have_names(shared: tuple[ClusterSession, Sessions]) -> None:
    session, sessions = shared
    session.run("init")
    train(session, 0)
    directory = sessions.directory
    assert {path.name for path in directory.iterdir()} == {"master-0", "worker-0", "worker-1"}
    assert all(stat.S_ISSOCK(path.stat().st_mode) for path in directory.iterdir())
    assert f"{directory}/arena-" in Path("/proc/self/maps").read_text()


def test_what_is_known_of_the_processes(
    shared: tuple[ClusterSession, Sessions], expected: tuple[list[Weights], LocalSession]
) -> None:
    session, sessions = shared
    course(session)
    assert set(session.peak_memory_bytes()) == {"master", "worker-0", "worker-1"}
    assert min(session.peak_memory_bytes().values()) > 10_000_000
    assert session.libraries() == expected[1].libraries()
    assert {path.name for path in sessions.logs.iterdir()} == {"worker-0.log", "worker-1.log"}
    secret = session._identity.token
    for index in range(WORKERS):
        assert secret not in " ".join(sessions.worker(index).cmdline())
        assert secret not in sessions.worker(index).environ().values()


def test_two_sessions_at_once_do_not_disturb_each_other(
    sessions: Sessions, expected: tuple[list[Weights], LocalSession], session: ClusterSession
) -> None:
    with sessions.new() as other:
        for each in (session, other):
            each.run("init")
        for step in range(3):
            for each in (session, other):
                expect_same_bits(train(each, step), expected[0][step])
    expect_same_bits(session.run("save"), expected[0][-1])


def test_a_closed_session_has_no_workers_and_no_memory(sessions: Sessions) -> None:
    with sessions.new() as session:
        session.run("init")
        directory, libraries = sessions.directory, session.libraries()
        session.close()
        assert not directory.exists()
        assert processes_of(sessions.run_ids[-1]) == []
        assert str(directory) not in Path("/proc/self/maps").read_text()
        with pytest.raises(RunnerError, match="the session has no workers: it is used inside its `with` block"):
            session.run("init")
        session.close()
    assert session.libraries() == libraries
    assert (sessions.logs / "worker-0.log").exists()


def test_workers_of_a_session_that_ends_well_leave_by_themselves(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_exception_inside_the_block_passes_and_leaves_nothing(sessions: Sessions) -> None:
    def fail(session: ClusterSession) -> None:
        session.run("init")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), sessions.new() as session:
        fail(session)


def test_a_start_that_fails_leaves_nothing(sessions: Sessions, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot start worker-0 .*missing/worker-0\.log: No such file"):
        sessions.new(logs=tmp_path / "missing").__enter__()


def test_a_start_that_fails_half_way_leaves_nothing(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "worker-1.log").mkdir()
    with pytest.raises(ResourceError, match=r"cannot start worker-1 .*worker-1\.log: Is a directory"):
        sessions.new().__enter__()


def test_a_source_that_cannot_be_made_is_raised_in_its_class_with_the_workers_name(sessions: Sessions) -> None:
    source = {**SOURCE, "config": {"name": "no-such-data"}}
    expected = r"^worker-\d: unknown dataset: data.name is 'no-such-data'"
    with pytest.raises(ConfigError, match=expected), sessions.new(source) as session:
        session.run("init")


@contextmanager
def suspended(process: psutil.Process) -> Iterator[None]:
    """Hold a process up inside the block."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def test_a_worker_that_is_stopped_is_noticed_as_silent_and_ended(sessions: Sessions) -> None:
    def stop_and_train(session: ClusterSession) -> None:
        session.run("init")
        sessions.worker(1).suspend()
        train(session, 0)

    monitor = HeartbeatMonitor(silence_s=2.0)
    expected = r"^worker-1 is silent: no heartbeat for .* the stacks of its threads, unless it is stopped altogether, "
    with pytest.raises(ClusterError, match=expected), sessions.new(monitor=monitor) as session:
        stop_and_train(session)


class Listening(HeartbeatMonitor):
    """Remembers what each worker said last."""

    def __init__(self, limits_s: Mapping[str, float], silence_s: float) -> None:
        super().__init__(limits_s, silence_s)
        self.last: dict[str, str] = {}

    def heartbeat(self, worker: str, section: str, step: int, now: float) -> None:
        self.last[worker] = section
        super().heartbeat(worker, section, step, now)


def test_a_worker_that_is_stuck_shows_where(sessions: Sessions) -> None:
    """Worker 0, that is: it waits for worker 1, which is held up when it has said that it is idle."""
    monitor = Listening({STEP: 2.0}, silence_s=1000.0)
    with sessions.new(monitor=monitor) as session:
        session.run("init")
        train(session, 3)
        while monitor.last.get("worker-1") != IDLE:
            # Worker 0 alone has the values to save; meanwhile the master listens.
            session.run("save")
        expected = "worker-0 is stuck: section 'step' at step 4 has taken"
        with suspended(sessions.worker(1)), pytest.raises(ClusterError, match=expected):
            train(session, 4)
        assert "mailbox.py" in (sessions.logs / "worker-0.log").read_text()


SERVED = SyncData(workers=WORKERS, combine="parameter_server", servers=2).build(
    task_of(NETWORKS["dense"], Momentum(clip_norm=0.5), batch_size=BATCH)
)


def test_parameter_servers_are_processes_beside_the_workers(sessions: Sessions, registry: Registry) -> None:
    cluster = local_cluster(WORKERS, servers=2)
    with source_from_config(**SOURCE) as source, closing(LocalSession(SERVED, cluster, registry, source)) as local:
        expected, expected_sent = course(local), local.sent_bytes()
    with sessions.new(program=SERVED) as session:
        expect_same_course(course(session), expected)
        assert session.sent_bytes() == expected_sent
        assert min(expected_sent) > 0
        names = {"worker-0", "worker-1", "ps-0", "ps-1"}
        assert set(session.peak_memory_bytes()) == {"master", *names}
        assert {path.name for path in sessions.logs.iterdir()} == {f"{name}.log" for name in names}


def test_launched_clients_overlap_and_their_turns_replay_them_to_the_bit(
    sessions: Sessions, registry: Registry
) -> None:
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


def test_while_clients_are_under_way_no_other_is_run(sessions: Sessions) -> None:
    with sessions.new(None, program=tally()) as session:
        session.run("init")
        with pytest.raises(RunnerError, match="no client is under way: launch one first"):
            session.finished()
        with pytest.raises(RunnerError, match="client 'save' was launched, but is not deferred: run it"):
            session.launch("save")
        session.launch("work_0")
        with pytest.raises(RunnerError, match="client 'work_0' was launched, but is under way"):
            session.launch("work_0")
        with pytest.raises(RunnerError, match="client 'save' was run while work_0 are under way: let them end"):
            session.run("save")
        with pytest.raises(RunnerError, match="a trace of 'work_0' was asked for while work_0 are under way: let them"):
            session.start_trace("work_0")
        with pytest.raises(RunnerError, match="client 'save' was loaded while work_0 are under way: let them end"):
            session._load(session._program.clients["save"])
        assert session.finished().client == "work_0"
        session.start_trace("work_0")
        session.launch("work_0")
        with pytest.raises(RunnerError, match="the end of a trace was asked for while work_0 are under way: let them"):
            session.stop_trace()
        assert session.finished().client == "work_0"
        assert {span.step for span in session.stop_trace().spans} == {0}
        session.run("save")


def test_a_worker_that_dies_while_clients_are_under_way_is_named(sessions: Sessions) -> None:
    with sessions.new(None, program=tally()) as session:
        session.run("init")
        session.launch("work_0")
        session.finished()
        session.launch("work_1")
        session.finished()
        sessions.worker(1).kill()
        with pytest.raises(ClusterError, match=r"^worker-1 "):
            pushed(session, rounds=1000)


def test_a_parameter_server_that_is_stopped_is_noticed_under_its_own_name(sessions: Sessions) -> None:
    monitor = Listening({}, silence_s=2.0)
    with sessions.new(program=SERVED, monitor=monitor) as session:
        session.run("init")
        assert set(monitor.last) <= {"worker-0", "worker-1", "ps-0", "ps-1"}
        with (
            suspended(sessions.worker(1, role="ps")),
            pytest.raises(ClusterError, match=r"^ps-1 is silent: no heartbeat for "),
        ):
            train(session, 0)


def test_each_device_is_a_process_of_its_own(registry: Registry, tmp_path: Path) -> None:
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
