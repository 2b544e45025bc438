"""Fixtures of tests with workers, on a virtual network and in real processes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engine.cluster import worker_group
from runner.engine.cluster.transport.private_directory import private_directory
from runner.kernels.registry import Registry
from tests.engine.cluster.sessions import Sessions, expect_nothing_left
from tests.engine.cluster.virtual_cluster import VirtualCluster, there_and_back, virtual_cluster

Start = Callable[..., AbstractContextManager[VirtualCluster]]


class Source:
    """Examples of the program there_and_back, all equal to ``x`` + step; records that it was closed."""

    def __init__(self, x: float = 0.0) -> None:
        self.closed = False
        self._x = x

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, Any]:
        return {"x": np.full(hi - lo, self._x + step)}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def start(tmp_path: Path, registry: Registry) -> Start:
    """Start the two workers of there_and_back. source: of each of them."""

    def begin(
        make_source: Callable[[Mapping[str, Any]], Any] = lambda description: Source(), kernels: Registry = registry
    ) -> AbstractContextManager[VirtualCluster]:
        return virtual_cluster(there_and_back(), tmp_path, kernels, make_source)

    return begin


@pytest.fixture
def cluster(start: Start) -> Iterator[VirtualCluster]:
    """The two workers after setup."""
    with start() as cluster:
        cluster.set_up()
        yield cluster


@pytest.fixture
def fed(cluster: VirtualCluster) -> VirtualCluster:
    """The two workers with initial values and with feeds for a step of the client ``run``."""
    cluster.run("init")
    cluster.feed("run", {"rate": 0.5})
    return cluster


@pytest.fixture
def sessions(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    """Sessions of one test, after which no process or directory may be left."""
    directories: list[Path] = []

    @contextmanager
    def noted() -> Iterator[Path]:
        with private_directory() as directory:
            directories.append(directory)
            yield directory

    monkeypatch.setattr(worker_group, "private_directory", noted)
    sessions = Sessions(registry, tmp_path)
    yield sessions
    expect_nothing_left(sessions, directories)
