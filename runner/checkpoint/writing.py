"""Commit a checkpoint: at every moment and after any failure, the newest ``step-N`` on the disk is complete.

The order of the operations guarantees this: check the free space; write and flush the shard, then the manifest, in a
temporary directory; flush and rename this directory; flush its parent; read the checkpoint back from the disk; delete
older checkpoints.
"""

import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from runner.checkpoint import layout
from runner.checkpoint.manifest import MANIFEST_FILE, MINIMUM_KEEP, CheckpointMeta, Manifest, encode
from runner.checkpoint.reading import UNUSABLE, load
from runner.checkpoint.shard import Array, pack
from runner.errors import CheckpointError, ConfigError, ResourceError
from runner.system.files import create_directory, fsync_directory, replace_durably, write_durably, writing

_log = logging.getLogger(__name__)


def save(
    directory: str | os.PathLike[str],
    *,
    step: int,
    variables: Mapping[str, Array],
    meta: CheckpointMeta,
    keep: int = MINIMUM_KEEP,
) -> Path:
    """Write ``variables`` as ``directory/step-N``; return its path.

    variables: name of a whole variable, not of a shard -> array of any byte order and memory layout.

    Every call first deletes uncommitted checkpoints. If the step is already committed with the same variables, only
    ``meta`` is stored, if its progress differs. Otherwise, the checkpoint is written to the disk and read back. Of the
    checkpoints up to this step, only the newest ``keep`` and the best according to ``meta`` are then kept. The caller
    must hold the lock of the run directory.

    Raises NumericError for a value that is not finite; ConfigError for ``keep`` below 3; ResourceError if the disk is
    full or fails; CheckpointError if the format cannot hold a value, if different variables are committed for this
    step, or if the read-back fails; DirectoryInUseError if a later epoch of the run has written here. No error damages
    older checkpoints.
    """
    if keep < MINIMUM_KEEP:
        raise ConfigError(f"checkpoint.keep={keep}: expected {MINIMUM_KEEP} or more")
    directory = Path(directory)
    final = layout.committed_path(directory, step)
    record, payload = pack(variables)
    manifest = Manifest(step, meta, (record,))
    files = {record.file: payload, MANIFEST_FILE: encode(manifest)}
    advice = "older checkpoints were kept. Make the directory writable or free space, then resume"
    with writing(f"checkpoint {final}", advice):
        create_directory(directory)
        layout.remove_leftovers(directory, meta.epoch)
        if (stored := _committed(final, manifest)) is not None:
            if stored.meta.progress != meta.progress:
                replace_durably(final / MANIFEST_FILE, encode(replace(stored, meta=meta)))
            return final
        _require_space(directory, sum(map(len, files.values())))
        _commit(final, files, meta.epoch)
        _read_back(final, manifest)
        _prune(directory, manifest, keep)
    return final


def _committed(final: Path, manifest: Manifest) -> Manifest | None:
    """Return the manifest of ``final``; None if it cannot be used. Raises CheckpointError if its variables differ."""
    if not os.path.lexists(final):
        return None
    try:
        stored = load(final).manifest
    except UNUSABLE as error:
        _log.warning("writing a checkpoint again because the one on the disk cannot be used: %s", error)
        return None
    if set(stored.variables) != set(manifest.variables):
        raise CheckpointError(
            f"{final} exists, and its values differ from those to save: an earlier start of the run had a "
            "different result. Nothing was changed; move this checkpoint away to continue"
        )
    fsync_directory(final.parent)  # an earlier save may have failed after the rename and before this flush
    return stored


def _require_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise ResourceError(
            f"no space for a checkpoint in {directory}: it needs {needed} bytes, {free} are free; "
            "older checkpoints were kept. Free space, then resume"
        )


def _commit(final: Path, files: Mapping[str, bytes], epoch: int) -> None:
    """Write ``files`` in their order to a temporary directory, make them durable, and rename the directory."""
    temporary = layout.temporary_path(final, epoch)
    with ExitStack() as on_failure:
        temporary.mkdir()
        # If writing fails, free the space. If the deletion fails too, the next save deletes the rest.
        on_failure.callback(shutil.rmtree, temporary, ignore_errors=True)
        for name, content in files.items():
            write_durably(temporary / name, content)
        fsync_directory(temporary)
        if os.path.lexists(final):
            layout.set_aside(final, epoch)
        os.rename(temporary, final)
        on_failure.pop_all()
    fsync_directory(final.parent)


def _read_back(final: Path, manifest: Manifest) -> None:
    """Raise CheckpointError unless the disk, and not only the page cache, holds the checkpoint."""
    for path in final.iterdir():
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    try:
        stored = load(final).manifest
    except UNUSABLE as error:
        raise CheckpointError(
            f"the new checkpoint cannot be read back: {error}; older checkpoints were kept. Check the disk"
        ) from error
    if stored != manifest:
        raise CheckpointError(f"{final} differs from the written checkpoint: another process writes to {final.parent}")


def _prune(directory: Path, newest: Manifest, keep: int) -> None:
    """Discard checkpoints older than the newest, except the ``keep`` - 1 newest of them and the best.

    Checkpoints of later steps are damaged: otherwise, the run would have been resumed from one of them. Later
    checkpoints do not count towards ``keep``, so that they cannot displace an intact checkpoint.
    """
    older = [(step, path) for step, path in layout.committed(directory) if step < newest.step]
    for step, path in older[keep - 1 :]:
        if step != newest.meta.best_step:
            layout.discard(path, newest.meta.epoch)
