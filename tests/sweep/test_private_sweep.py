"""Files of a sweep that contain a secret are readable by their owner only."""

import stat
from pathlib import Path

import pytest

from runner.cli import main
from runner.config.hydra_sweep import JOB, launch_planned
from runner.config.launcher import Launcher
from tests.fake_training import FakeTraining

SECRET = "hunter2"
SWEEP = ["-m", "tracking=none", "hydra.sweep.dir=sweep", "seed=1,2"]
ENVIRONMENT = f"+hydra.job.env_set.STORE_TOKEN={SECRET}"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def files_that_tell(folder: Path) -> set[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in files if SECRET in path.read_text()}


@pytest.mark.usefixtures("fake_training")
def test_a_secret_of_the_launcher_is_in_a_directory_of_the_owner(folder: Path) -> None:
    assert main([*SWEEP, ENVIRONMENT]) == 0
    assert mode(folder / "sweep") == 0o700
    assert mode(folder / "sweep" / "plan.json") == 0o600


@pytest.mark.usefixtures("fake_training")
def test_in_a_directory_that_is_there_the_files_are_the_owners(folder: Path) -> None:
    (folder / "sweep").mkdir(mode=0o755)
    assert main([*SWEEP, ENVIRONMENT]) == 0
    assert mode(folder / "sweep") == 0o755
    told = files_that_tell(folder / "sweep")
    assert told == {"plan.json", "multirun.yaml"}
    assert {mode(folder / "sweep" / name) for name in told} == {0o600}


def test_files_of_launchers_are_private(tmp_path: Path) -> None:
    numbers: list[str] = []
    launch_planned(lambda composed: numbers.append(composed[JOB]), {}, {3: tmp_path / "3"}, Launcher(), tmp_path)
    assert numbers == ["3"]
    assert mode(tmp_path / ".launch") == 0o700


def test_a_sweep_without_secrets_hides_nothing(fake_training: FakeTraining, folder: Path) -> None:
    assert main(SWEEP) == 0
    assert [mode(folder / "sweep") & 0o055, mode(folder / "sweep" / "plan.json") & 0o044] == [0o055, 0o044]
    assert len(fake_training.calls) == 2
