"""Find the checkpoint of a path: the path itself, or the best or the newest checkpoint of a run."""

import logging
from pathlib import Path

from runner.checkpoint import layout
from runner.checkpoint.manifest import MANIFEST_FILE
from runner.checkpoint.reading import UNUSABLE, load, newest
from runner.errors import CheckpointError

BEST = "best"
NEWEST = "newest"

_FOLDER = "checkpoints"
_log = logging.getLogger(__name__)


def find(path: Path, which: str | None = None) -> Path:
    """Return the checkpoint of ``path``, which is a checkpoint, a folder of them, or the directory of a run.

    which: :data:`BEST` or :data:`NEWEST`; None is the best if one is kept and can be used, and the newest otherwise.
    Raises CheckpointError if there is no such path or checkpoint.
    """
    if layout.step_of(path) is not None or path.is_file() or (path / MANIFEST_FILE).exists():
        if which is not None:
            raise CheckpointError(f"{path} is one checkpoint: {which!r} selects among those of a run, in {path.parent}")
        return path
    if not path.exists():
        raise CheckpointError(f"{path}: no such directory; expected the directory of a run, or a checkpoint")
    folder = path / _FOLDER if (path / _FOLDER).is_dir() else path
    latest = newest(folder)
    if latest is None:
        raise CheckpointError(
            f"{path}: no checkpoint that can be used; expected a directory step-N, or one of a run with checkpoints"
        )
    return latest if which == NEWEST else _best(folder, latest, required=which == BEST)


def _best(folder: Path, latest: Path, *, required: bool) -> Path:
    """Return the checkpoint that the newest one names as the best; if it cannot be used, the newest unless required."""
    step = load(latest).manifest.meta.best_step
    best = None if step is None else layout.committed_path(folder, step)
    if best == latest:
        return latest
    fault = _fault(best)
    if best is not None and not fault:
        return best
    if required:
        raise CheckpointError(f"{folder}: {fault}; a run keeps it with checkpoint.keep_best=true. Use {NEWEST!r}")
    if best is not None:
        _log.warning("%s: %s; %s is used", folder, fault, latest.name)
    return latest


def _fault(best: Path | None) -> str:
    """Return why the best checkpoint cannot be used; "" if it can."""
    if best is None:
        return "none is kept as the best"
    if not best.exists():
        return f"the best, {best.name}, does not exist any more"
    try:
        load(best)
    except UNUSABLE as error:
        return f"the best, {best.name}, cannot be used ({error})"
    return ""
