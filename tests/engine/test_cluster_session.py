"""Sessions on real worker processes: what they compute, how they fail, and that nothing is left behind."""

from __future__ import annotations

import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from runner.data.source import source_from_config
from runner.engine.cluster_session import ClusterSession
from runner.engine.device import Cluster, Device, local_cluster, worker_device
from runner.engine.session import LocalSession, Session
from runner.engine.transport.heartbeat_monitor import HeartbeatMonitor
from runner.engine.transport.messages import STEP
from runner.engine.transport.private_directory import PrivateDirectory
from runner.errors import ClusterError, ConfigError, ResourceError, RunnerError
from runner.kernels.registry import Registry
from runner.optimizers.momentum import Momentum
from runner.strategies.sync_data import SyncData
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
EXIT_S = 10.0
"""Longer than anything here takes: reached only by a test that fails."""


class Sessions:
    """Makes sessions, each of a run of its own, and knows what they have on this machine."""

    def __init__(self, registry: Registry, logs: Path) -> None:
        self.logs = logs
        self.run_ids: list[str] = []
        self.directories: list[Path] = []
        self._registry = registry

    def new(self, source: Mapping[str, Any] = SOURCE, **options: Any) -> ClusterSession:
        """A session that was not entered yet."""
        self.run_ids.append(secrets.token_hex(8))
        own = {"run_id": self.run_ids[-1], "epoch": 1, "logs": self.logs, "threads": 1}
        return ClusterSession(PROGRAM, local_cluster(WORKERS), self._registry, source, **(own | options))

    def expect_nothing_left(self) -> None:
        """Require that no process and no directory of any of the sessions is there."""
        assert [processes_of(run_id) for run_id in self.run_ids] == [[]] * len(self.run_ids)
        assert len(self.directories) == len(self.run_ids)
        assert [path for path in self.directories if path.exists()] == []

    def worker(self, index: int) -> psutil.Process:
        """A worker process of the session that was made last."""
        (found,) = (
            process
            for process in map(psutil.Process, processes_of(self.run_ids[-1]))
            if f"token-worker-{index}" in " ".join(process.cmdline())
        )
        return found


def opened(sessions: Sessions, patch: pytest.MonkeyPatch) -> Sessions:
    """Let sessions note where their private directories are."""
    create = PrivateDirectory.create

    def noted(parent: Path | None = None) -> PrivateDirectory:
        directory = create(parent)
        sessions.directories.append(directory.path)
        return directory

    patch.setattr(PrivateDirectory, "create", noted)
    return sessions


@pytest.fixture
def sessions(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sessions:
    return opened(Sessions(registry, tmp_path), monkeypatch)


def train(session: Session, step: int) -> dict[str, Array]:
    """One step; the rates fall, as in a run."""
    feeds = {"step": np.int64(step), "learning_rate": np.float64(0.1 / (1 + step))}
    return session.run("train", step=step, feeds=feeds)


def course(session: Session, steps: int = 3) -> list[Weights]:
    """Everything a short run fetches."""
    session.run("init")
    fetched = [train(session, step) for step in range(steps)]
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
    with pytest.MonkeyPatch.context() as patch:
        sessions = opened(Sessions(registry, tmp_path_factory.mktemp("logs")), patch)
        with sessions.new() as session:
            yield session, sessions
        sessions.expect_nothing_left()


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
        ({"step": np.int32(0)}, r"^feed replica_0/step:0: came int32\[\], expected int64\[\]$"),
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


def test_while_it_runs_only_sockets_have_names(shared: tuple[ClusterSession, Sessions]) -> None:
    session, sessions = shared
    session.run("init")
    train(session, 0)
    (directory,) = sessions.directories
    assert {path.name for path in directory.iterdir()} == {"master-0", "worker-0", "worker-1"}
    assert all(stat.S_ISSOCK(path.stat().st_mode) for path in directory.iterdir())
    assert "arena" in Path("/proc/self/maps").read_text()


def test_what_is_known_of_the_processes(shared: tuple[ClusterSession, Sessions]) -> None:
    session, sessions = shared
    session.run("init")
    assert set(session.peak_memory_bytes()) == {"master", "worker-0", "worker-1"}
    assert min(session.peak_memory_bytes().values()) > 10_000_000
    assert session.libraries() == {"cpu": ["numpy"]}
    assert {path.name for path in sessions.logs.iterdir()} == {"worker-0.log", "worker-1.log"}
    secret = session._identity.token
    for index in range(WORKERS):
        assert secret not in " ".join(sessions.worker(index).cmdline())
        assert secret not in sessions.worker(index).environ().values()


def test_two_sessions_at_once_do_not_disturb_each_other(
    sessions: Sessions, expected: tuple[list[Weights], LocalSession], session: ClusterSession
) -> None:
    with sessions.new(logs=sessions.logs) as other:
        for each in (session, other):
            each.run("init")
        for step in range(3):
            for each in (session, other):
                expect_same_bits(train(each, step), expected[0][step])
    sessions.expect_nothing_left()
    expect_same_bits(session.run("save"), expected[0][-1])


def test_a_closed_session_has_no_workers_and_no_memory(sessions: Sessions) -> None:
    with sessions.new() as session:
        session.run("init")
        session.close()
        sessions.expect_nothing_left()
        assert str(sessions.directories[0]) not in Path("/proc/self/maps").read_text()
        with pytest.raises(RunnerError, match="the session has no workers: it is used inside its `with` block"):
            session.run("init")
        session.close()
    assert session.libraries() == {"cpu": ["numpy"]}
    assert (sessions.logs / "worker-0.log").exists()


def test_an_exception_inside_the_block_passes_and_leaves_nothing(sessions: Sessions) -> None:
    with pytest.raises(ZeroDivisionError), sessions.new() as session:
        session.run("init")
        raise ZeroDivisionError
    sessions.expect_nothing_left()


def test_a_start_that_fails_leaves_nothing(sessions: Sessions, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot start worker-0 .*missing/worker-0\.log: No such file"):
        sessions.new(logs=tmp_path / "missing").__enter__()
    sessions.expect_nothing_left()


def test_a_start_that_fails_half_way_leaves_nothing(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "worker-1.log").mkdir()
    with pytest.raises(ResourceError, match=r"cannot start worker-1 .*worker-1\.log: Is a directory"):
        sessions.new().__enter__()
    sessions.expect_nothing_left()


def test_a_source_that_cannot_be_made_is_raised_in_its_class_with_the_workers_name(sessions: Sessions) -> None:
    source = {**SOURCE, "config": {"name": "no-such-data"}}
    with (
        pytest.raises(ConfigError, match=r"^worker-\d: unknown dataset: data.name is 'no-such-data'"),
        sessions.new(source) as session,
    ):
        session.run("init")
    sessions.expect_nothing_left()


def test_a_worker_that_is_stopped_is_noticed_as_silent(sessions: Sessions) -> None:
    def stop_and_train(session: ClusterSession) -> None:
        session.run("init")
        sessions.worker(1).suspend()
        train(session, 0)

    expected = r"^worker-1 is silent: no heartbeat for .* the stacks of its threads, unless it is stopped altogether, "
    with (
        pytest.raises(ClusterError, match=expected),
        sessions.new(monitor=HeartbeatMonitor(silence_s=1.5)) as session,
    ):
        stop_and_train(session)
    sessions.expect_nothing_left()


def test_a_worker_that_is_stuck_shows_where(sessions: Sessions) -> None:
    """Worker 0, that is: it waits for worker 1, which is stopped and stays within its own limits."""
    monitor = HeartbeatMonitor({STEP: 1.0}, silence_s=1000.0)
    with (
        pytest.raises(ClusterError, match="worker-0 is stuck: section 'step' at step 4 has taken"),
        sessions.new(monitor=monitor) as session,
    ):
        session.run("init")
        train(session, 3)
        stopped = sessions.worker(1)
        stopped.suspend()
        try:
            train(session, 4)
        finally:
            stopped.resume()
    sessions.expect_nothing_left()
    assert "mailbox.py" in (sessions.logs / "worker-0.log").read_text()


def test_each_device_is_a_process_of_its_own(registry: Registry, tmp_path: Path) -> None:
    one_worker = Cluster((Device(worker_device(0)), Device("/job:worker/task:0/device:cpu:1")))
    skipping = Cluster((Device(worker_device(0)), Device(worker_device(2))))
    for cluster in (one_worker, skipping):
        with pytest.raises(ValueError, match="expected one device for each of worker-0, worker-1"):
            ClusterSession(PROGRAM, cluster, registry, None, run_id="r", epoch=1, logs=tmp_path, threads=1)
