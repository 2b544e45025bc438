"""Fixtures for tests with workers, on a virtual network and in real processes."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from runner.data.source import source_from_config
from runner.engine.cluster import starting
from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.cluster.spares import Spares
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.private_directory import private_directory
from runner.engine.compile.program import Program
from runner.engine.graph.device import local_cluster
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import Session
from runner.kernels.contract import Array
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.records.summary import joining_facts
from runner.strategies.sync_data import SyncData
from tests.engine.cluster.stage import Stage
from tests.engine.cluster.virtual_cluster import VirtualCluster, there_and_back, virtual_cluster
from tests.integration.command import processes_of
from tests.strategies.networks import EXAMPLE_SHAPE, NETWORKS, TEST_BATCH, workload_of
from tests.strategies.training import Weights, expect_same_bits

WORKERS = 2
BATCH = 5
WORKLOAD = workload_of(NETWORKS["dense"], Momentum(), batch_size=BATCH)
PROGRAM = SyncData(workers=WORKERS).build(WORKLOAD)
RING = SyncData(workers=3, combine="ring_all_reduce").build(WORKLOAD)
Description = Mapping[str, Any]
SOURCE: Description = {
    "config": {"name": "synthetic", "shape": list(EXAMPLE_SHAPE), "classes": 3, "examples": 16, "test_examples": 16},
    "seed": 1,
    "batch_size": BATCH,
    "eval_batch_size": TEST_BATCH,
    "dtype": "float64",
}


def wait_for_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the master wait, whenever it starts spare processes, until they have joined the run."""
    start_missing = Spares.start_missing

    def joined(spares: Spares) -> None:
        start_missing(spares)
        while spares.started - spares.joined.spares.keys():
            received = spares.endpoint.receive(1.0)
            if received is None or not messages.is_spare(received.source):
                continue  # a hello or a heartbeat of a heartbeat thread
            assert isinstance(received.message, messages.Hello)
            spares.welcome(received.source, received.message)

    monkeypatch.setattr(Spares, "start_missing", joined)


class Sessions:
    """A factory of sessions with separate run ids. ``worker`` and ``directory`` belong to the newest session."""

    def __init__(self, registry: Registry, logs: Path) -> None:
        self.logs = logs
        self.run_ids: list[str] = []
        self._registry = registry

    def new(self, source: Description | None = SOURCE, *, program: Program = PROGRAM, **options: Any) -> ClusterSession:
        """Return a new session; the caller enters its ``with`` block."""
        self.run_ids.append(secrets.token_hex(8))
        own: dict[str, Any] = {"run_id": self.run_ids[-1], "epoch": 1, "logs": self.logs, "threads": 1}
        own["facts"] = joining_facts({}, remote="launcher" in options and options["launcher"].has_keys)
        cluster = local_cluster(program.workers, program.servers)
        return ClusterSession(program, cluster, self._registry, source, **(own | options))

    def worker(self, index: int) -> psutil.Process:
        """Return the process of worker ``index``."""
        return self._found()[f"worker-{index}"][0]

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the newest session's workers and servers, by name."""
        return {name: process.pid for name, (process, _) in self._found().items()}

    @property
    def directory(self) -> Path:
        """The private directory of the newest session."""
        return self._found()["worker-0"][1].parent

    def _found(self) -> dict[str, tuple[psutil.Process, Path]]:
        """Name -> process and key file of the newest session's workers and servers, without those that are ending."""
        found = {}
        for pid in processes_of(self.run_ids[-1]):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                arguments = process.cmdline()
                if "--key" in arguments:  # the arguments of a process that is ending are empty
                    key = Path(arguments[arguments.index("--key") + 1])
                    found[key.stem.partition(".")[2]] = process, key
        return found


SERVED = SyncData(workers=WORKERS, combine="parameter_server", servers=2).build(
    workload_of(NETWORKS["dense"], Momentum(clip_norm=0.5), batch_size=BATCH)
)


def expect_nothing_left(sessions: Sessions, directories: Sequence[Path]) -> None:
    assert [processes_of(run_id) for run_id in sessions.run_ids] == [[]] * len(sessions.run_ids)
    assert len(directories) >= len(sessions.run_ids), "a session that restarts has several directories"
    assert [path for path in directories if path.exists()] == []


def train(session: Session, step: int) -> dict[str, Array]:
    """Run one training step with a learning rate that decreases with the step number."""
    feeds = {"step": np.int64(step), "learning_rate": np.float64(0.1 / (1 + step))}
    return session.run("train", step=step, feeds=feeds)


def losses(session: Session, steps: int = 3) -> list[Weights]:
    """Run ``init``, a few training steps, ``eval`` and ``save``; return the fetches of all runs after ``init``."""
    session.run("init")
    fetched: list[Weights] = [train(session, step) for step in range(steps)]
    fetched.append(session.run("eval", step=1, feeds={"step": np.int64(1)}))
    fetched.append(session.run("save"))
    return fetched


def expect_same_losses(found: list[Weights], expected: list[Weights]) -> None:
    for mine, other in zip(found, expected, strict=True):
        expect_same_bits(mine, other)


@contextmanager
def in_process(registry: Registry, program: Program = PROGRAM, source: Description = SOURCE) -> Iterator[LocalSession]:
    """Yield a session in this process with the inputs of a cluster session."""
    devices = local_cluster(program.workers, program.servers)
    with source_from_config(**source) as inputs, closing(LocalSession(program, devices, registry, inputs)) as session:
        yield session


@contextmanager
def suspended(process: psutil.Process) -> Iterator[None]:
    """Suspend a process while the block runs."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()


Start = Callable[..., AbstractContextManager[VirtualCluster]]


class Source:
    """An input source for the program ``there_and_back``. All examples of step s have the value ``x`` + s."""

    def __init__(self, x: float = 0.0) -> None:
        self.closed = False
        self._x = x

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, Any]:
        return {"x": np.full(hi - lo, self._x + step)}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def start(tmp_path: Path, registry: Registry) -> Start:
    """Return a function that starts the two workers of ``there_and_back``, each with a source from ``make_source``."""

    def begin(
        make_source: Callable[..., Any] = lambda description: Source(), kernels: Registry = registry, **options: Any
    ) -> AbstractContextManager[VirtualCluster]:
        return virtual_cluster(there_and_back(), tmp_path, kernels, make_source, **options)

    return begin


@pytest.fixture
def cluster(start: Start) -> Iterator[VirtualCluster]:
    """Yield the two workers of ``there_and_back`` after setup."""
    with start() as cluster:
        cluster.set_up()
        yield cluster


@pytest.fixture
def fed(cluster: VirtualCluster) -> VirtualCluster:
    """Return the two workers after the client ``init`` has run, with feeds for one step of the client ``run``."""
    cluster.run("init")
    cluster.feed("run", {"rate": 0.5})
    return cluster


@pytest.fixture
def sessions(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    """Yield a factory of sessions; after the test, check that no process or directory of a session is left."""
    directories: list[Path] = []

    @contextmanager
    def noted() -> Iterator[Path]:
        with private_directory() as directory:
            directories.append(directory)
            yield directory

    monkeypatch.setattr(starting, "private_directory", noted)
    sessions = Sessions(registry, tmp_path)
    yield sessions
    expect_nothing_left(sessions, directories)


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor(grace_s=0.2) as supervisor:
        yield supervisor


@pytest.fixture
def elsewhere(supervisor: Supervisor, tmp_path: Path) -> Stage:
    """Return a group after setup whose processes the supervisor has not started."""
    return Stage(supervisor, tmp_path, command=None).set_up()
