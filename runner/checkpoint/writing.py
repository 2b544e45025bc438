"""Commit a checkpoint: at every moment, whatever fails, the newest ``step-N`` on the disk is a whole one.

The order is the promise. Space is reserved, the shard and then the manifest are written and flushed in a
temporary directory, the directory is flushed, renamed, its parent flushed, the result read back from the
disk; only then may older checkpoints go.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from runner.checkpoint import layout
from runner.checkpoint.manifest import MANIFEST_FILE, MINIMUM_KEEP, CheckpointMeta, Manifest, encode
from runner.checkpoint.reading import UNUSABLE, load
from runner.checkpoint.shard import Array, pack
from runner.errors import CheckpointError, ConfigError, ResourceError
from runner.system.files import create_directory, fsync_directory, write_durably

_log = logging.getLogger(__name__)


def save(
    directory: str | os.PathLike[str],
    *,
    step: int,
    variables: Mapping[str, Array],
    meta: CheckpointMeta,
    keep: int = MINIMUM_KEEP,
) -> Path:
    """Write ``variables``, unsharded name -> array of any layout, as ``directory/step-N``; return its path.

    When it returns, the checkpoint is on the disk and has been read back, and older ones are pruned so that
    ``keep`` remain with it, and the one that ``meta`` names as the best. One of the same step with the same
    variables is left as it is. The caller holds the lock of the run directory, and ``meta.epoch`` is the epoch that
    goes with it.

    Raises NumericError for a value that is not finite; ConfigError for ``keep`` below 3; ResourceError when
    the disk is full or refuses; CheckpointError for what the format cannot hold, for other variables under
    the same step, and when the read-back fails; DirectoryInUseError when a later epoch of the run has been
    here. Older checkpoints survive all of them.
    """
    if keep < MINIMUM_KEEP:
        raise ConfigError(f"checkpoint.keep: came {keep}, expected at least {MINIMUM_KEEP}")
    directory = Path(directory)
    final = layout.committed_path(directory, step)
    record, payload = pack(variables)
    manifest = Manifest(step, meta, (record,))
    files = {record.file: payload, MANIFEST_FILE: encode(manifest)}
    with _writing(final):
        create_directory(directory)
        layout.remove_leftovers(directory, meta.epoch)
        if _is_committed(final, manifest):
            return final
        _require_space(directory, sum(map(len, files.values())))
        _commit(final, files, meta.epoch)
        _read_back(final, manifest)
        _prune(directory, manifest, keep)
    return final


@contextmanager
def _writing(final: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"cannot write checkpoint {final}: {error.strerror} ({error.filename or final}); older "
            "checkpoints were kept. Make the directory writable or free space, then resume"
        ) from error


def _is_committed(final: Path, manifest: Manifest) -> bool:
    """Tell whether the same variables are committed already; a damaged checkpoint does not count."""
    if not os.path.lexists(final):
        return False
    try:
        held = load(final).manifest
    except UNUSABLE as error:
        _log.warning("writing a checkpoint again because the one on the disk cannot be used: %s", error)
        return False
    if set(held.variables) != set(manifest.variables):
        raise CheckpointError(
            f"{final} exists and holds other values than the ones to save: the run has been here before with "
            "another outcome. Nothing was changed; move that checkpoint away to go on"
        )
    fsync_directory(final.parent)  # a save that failed just after its rename may be the one found here
    return True


def _require_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise ResourceError(
            f"no space for a checkpoint in {directory}: it needs {needed} bytes, {free} are free; "
            "older checkpoints were kept. Free space, then resume"
        )


def _commit(final: Path, files: Mapping[str, bytes], epoch: int) -> None:
    """Write ``files`` in their order under a temporary name, make them durable, and rename."""
    temporary = layout.temporary_path(final, epoch)
    with ExitStack() as on_failure:
        temporary.mkdir()
        # Gives the space back. If that fails too, the first error is the one to tell; the next save retries.
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
    """Prove that the disk, not only the page cache, holds what was meant."""
    for path in final.iterdir():
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    try:
        held = load(final).manifest
    except UNUSABLE as error:
        raise CheckpointError(
            f"a checkpoint was written and does not read back; older ones were kept, check the disk: {error}"
        ) from error
    if held != manifest:
        raise CheckpointError(f"{final} reads back as another checkpoint; two processes write in one directory")


def _prune(directory: Path, newest: Manifest, keep: int) -> None:
    """Discard checkpoints older than the newest so that ``keep`` remain with it, and the best.

    Later steps can only be damaged ones that the resumed run has not reached again; they are not counted,
    so that they cannot push out a good one.
    """
    older = [(step, path) for step, path in layout.committed(directory) if step < newest.step]
    for step, path in older[keep - 1 :]:
        if step != newest.meta.best_step:
            layout.discard(path, newest.meta.epoch)
