"""Finding the checkpoint of a path."""

import logging
from pathlib import Path

import pytest

from runner.checkpoint import BEST, NEWEST, find
from runner.errors import CheckpointError
from tests.checkpoint.test_checkpoint_commit import commit


def run_with(folder: Path, *steps: int, best: int | None = None) -> Path:
    """A run directory with checkpoints of these steps, the last of which names the best."""
    for step in steps:
        commit(folder / "checkpoints", step, best=best if step == steps[-1] else None)
    return folder


@pytest.mark.parametrize(
    ("best", "which", "expected"),
    [(2, None, 2), (2, BEST, 2), (2, NEWEST, 3), (3, BEST, 3), (None, None, 3), (None, NEWEST, 3)],
)
@pytest.mark.parametrize("inside", ["", "checkpoints"])
def test_of_a_run_the_best_or_the_newest(
    tmp_path: Path, best: int | None, which: str | None, expected: int, inside: str
) -> None:
    run = run_with(tmp_path / "run", 1, 2, 3, best=best)
    assert find(run / inside, which) == run / "checkpoints" / f"step-{expected}"


def test_a_checkpoint_is_itself_whatever_its_name(tmp_path: Path) -> None:
    path = commit(tmp_path, 1)
    assert find(path) == path
    renamed = path.rename(tmp_path / "mine")
    assert find(renamed) == renamed
    with pytest.raises(CheckpointError, match=r"mine is one checkpoint: 'best' selects among those of a run"):
        find(renamed, BEST)


def test_a_damaged_newest_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = run_with(tmp_path, 1, 2)
    (run / "checkpoints" / "step-2" / "variables.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert find(run).name == "step-1"
    assert "skipping a checkpoint" in caplog.text


def test_a_deleted_best_is_an_error_only_if_it_is_requested(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = run_with(tmp_path, 4, 5, best=3)
    with pytest.raises(CheckpointError, match="the best, step-3, does not exist any more"):
        find(run, BEST)
    with caplog.at_level(logging.WARNING):
        assert find(run).name == "step-5"
    assert "the best, step-3, does not exist any more; step-5 is used" in caplog.text


def test_a_damaged_best_is_an_error_only_if_it_is_requested(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = run_with(tmp_path, 1, 2, best=1)
    (run / "checkpoints" / "step-1" / "variables.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert find(run).name == "step-2"
    assert "the best, step-1, cannot be used" in caplog.text
    assert "is damaged: it is shorter than the" in caplog.text
    with pytest.raises(CheckpointError, match=r"the best, step-1, cannot be used .*Use 'newest'"):
        find(run, BEST)


def test_a_run_without_a_best_is_an_error_if_it_is_requested(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none is kept as the best; a run keeps it with checkpoint\.keep_best"):
        find(run_with(tmp_path, 1), BEST)


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("", "no checkpoint that can be used; expected a directory step-N"),
        ("absent", "absent: no such directory; expected the directory of a run"),
    ],
)
def test_a_path_without_checkpoints_is_refused(tmp_path: Path, folder: str, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        find(tmp_path / folder)
