"""The launcher of a run with worker processes."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from runner.engine.cluster.launchers import LocalLauncher
from runner.engine.cluster.supervisor import Supervisor
from runner.records.run_directory import RunDirectory
from runner.training.build import build
from runner.training.launching import launcher_of
from tests.engine.cluster.transport.test_ticket import PLAIN
from tests.small_runs import small_config


class _Environments:
    """A supervisor that starts no process and keeps the environment of the last one."""

    last: Mapping[str, str]

    def start(self, name: str, command: Any, log: Path, environment: Mapping[str, str]) -> None:
        self.last = environment


@pytest.mark.parametrize(
    ("threads", "given", "spins"),
    [
        (1, {}, None),
        (2, {}, "1000"),
        (2, {"GOMP_SPINCOUNT": "7"}, "7"),
        (2, {"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_waiting_threads_sleep_early_if_processes_share_cores(
    threads: int, given: dict[str, str], spins: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica and a parameter server together have ``2 * threads`` threads, here on two cores."""
    monkeypatch.setattr("runner.training.launching.usable_cores", lambda: 2)
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    config = small_config("parallelism=async_data", "parallelism.workers=1", f"cluster.threads_per_worker={threads}")
    found = _Environments()
    with RunDirectory.open(tmp_path / "run", resume=False) as directory:
        launcher = launcher_of(build(config), directory, os.environ)
    assert isinstance(launcher, LocalLauncher)
    launcher.start({"worker-0": PLAIN}, "ipc://inbox", cast(Supervisor, found), tmp_path, {})
    assert found.last.get("GOMP_SPINCOUNT") == spins
    assert found.last["OMP_NUM_THREADS"] == str(threads)
