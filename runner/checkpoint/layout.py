"""The names in a folder of checkpoints: ``step-N`` is committed; an uncommitted checkpoint has a suffix.

Start number E of the run (its epoch) writes a checkpoint as ``step-N.tmp-E`` and then renames it to ``step-N``. Before
deletion, a checkpoint is renamed to ``step-N.discarded-E``. Renames are atomic, so ``step-N`` is always complete.
"""

import os
import re
import shutil
from pathlib import Path

from runner.errors import DirectoryInUseError
from runner.system.files import fsync_directory

_COMMITTED = re.compile(r"step-(0|[1-9][0-9]{0,18})")
_UNCOMMITTED = re.compile(r"step-[0-9]+\.(?:tmp|discarded)-([0-9]{1,19})")


def committed_path(directory: Path, step: int) -> Path:
    return directory / f"step-{step}"


def temporary_path(final: Path, epoch: int) -> Path:
    """Return the path at which start ``epoch`` of the run writes a checkpoint before renaming it to ``final``."""
    return final.with_name(f"{final.name}.tmp-{epoch}")


def step_of(path: Path) -> int | None:
    """Return the step in the name of a committed checkpoint; None for any other name."""
    match = _COMMITTED.fullmatch(path.name)
    return int(match.group(1)) if match else None


def committed(directory: Path) -> list[tuple[int, Path]]:
    """List the committed checkpoints as (step, path), newest first; empty if there is no such directory."""
    if not directory.exists():
        return []
    found = [(step, path) for path in directory.iterdir() if (step := step_of(path)) is not None]
    return sorted(found, reverse=True)


def discard(path: Path, epoch: int) -> None:
    """Delete a checkpoint so that no crash leaves an incomplete checkpoint under a committed name."""
    _delete(set_aside(path, epoch))


def set_aside(path: Path, epoch: int) -> Path:
    """Durably rename the checkpoint to an uncommitted name; return the new path, which the next save deletes."""
    aside = path.with_name(f"{path.name}.discarded-{epoch}")
    if os.path.lexists(aside):
        _delete(aside)
    os.rename(path, aside)
    fsync_directory(path.parent)
    return aside


def remove_leftovers(directory: Path, epoch: int) -> None:
    """Delete the uncommitted checkpoints of epochs up to ``epoch``. The caller must hold the lock of the run directory.

    Raises DirectoryInUseError if a later epoch has written here: this process then no longer owns the directory.
    """
    for path in sorted(directory.iterdir()):
        match = _UNCOMMITTED.fullmatch(path.name)
        if match is None:
            continue
        if int(match.group(1)) > epoch:
            raise DirectoryInUseError(
                f"{path} was written by a later start of the run than this one (epoch {epoch}): "
                "another process uses the run directory, so this process stops"
            )
        _delete(path)


def _delete(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path)
