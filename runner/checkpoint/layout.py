"""The folder of checkpoints: ``step-N`` is a committed checkpoint; every other checkpoint has a name with a suffix.

In epoch E (start number E of the run), a checkpoint is written as ``step-N.tmp-E`` and then renamed to ``step-N``; to
be deleted, it is first renamed to ``step-N.discarded-E``. Renames are atomic, so ``step-N`` is always complete.
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
    """Return the path of the checkpoint of ``step``."""
    return directory / f"step-{step}"


def temporary_path(final: Path, epoch: int) -> Path:
    """Return the path at which start ``epoch`` of the run writes the checkpoint ``final`` before committing it."""
    return final.with_name(f"{final.name}.tmp-{epoch}")


def step_of(path: Path) -> int | None:
    """Return the step in the name of a committed checkpoint, None for any other name."""
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
    doomed = set_aside(path, epoch)
    _delete(doomed)


def set_aside(path: Path, epoch: int) -> Path:
    """Rename ``path`` durably to an uncommitted name and return the new path, which the next save deletes."""
    aside = path.with_name(f"{path.name}.discarded-{epoch}")
    if os.path.lexists(aside):
        _delete(aside)
    os.rename(path, aside)
    fsync_directory(path.parent)
    return aside


def remove_leftovers(directory: Path, epoch: int) -> None:
    """Delete the uncommitted checkpoints of this and earlier epochs. The caller holds the lock of the run directory.

    Raises DirectoryInUseError if a later epoch has written here, because this process no longer owns the directory.
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
