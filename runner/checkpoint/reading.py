"""Load a checkpoint, or find the best or the newest one that can be loaded. Every returned value has been checked."""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from runner.checkpoint import layout, shard
from runner.checkpoint.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest, ShardRecord, decode
from runner.checkpoint.shard import Array
from runner.errors import CheckpointError, NumericError, ResourceError, SecurityError
from runner.system.files import read_regular

PREFIX_BYTES = 4096

# Protocols 0 and 1 of pickle have no magic number; the pattern matches the start of pickled containers and classes.
_OLD_PICKLE = re.compile(rb"(\(dp\d+\n|\(lp\d+\n|\(d[qp]|\(l[qp]|\}q\x00|\]q\x00|c[A-Za-z_][\w.]*\n[A-Za-z_]\w*\n)")

_SIGNATURES = (
    (re.compile(rb"\x80[\x02-\x05]"), "a pickle (as in .pkl and older .pt files), which can run code when opened"),
    (_OLD_PICKLE, "a pickle (as in .pkl files), which can run code when opened"),
    (re.compile(rb"PK(\x03\x04|\x05\x06)"), "a zip archive (as in .pt and .npz files), which may hold a pickle"),
    (re.compile(rb"\x93NUMPY"), "a NumPy .npy file"),
    (re.compile(rb"\x89HDF\r\n\x1a\n"), "an HDF5 file (as in .h5 files)"),
    (re.compile(rb"\x1f\x8b"), "a gzip archive"),
    (re.compile(rb".{257}ustar", re.DOTALL), "a tar archive (as in very old .pt files)"),
)


def refuse_foreign(name: str, content: bytes) -> None:
    """Raise CheckpointError if ``content``, the beginning of file ``name``, has the signature of another format."""
    if content[4:9] == b"\x00\x00\x00\x00{":
        return  # safetensors begins with the length of its header, which can equal the signature of another format
    for signature, description in _SIGNATURES:
        if signature.match(content):
            raise CheckpointError(
                f"{name} is {description}; expected a checkpoint of runner: a directory step-N "
                "with manifest.json and variables.safetensors"
            )


UNUSABLE = (CheckpointError, NumericError, SecurityError)
Expected = Mapping[str, tuple[tuple[int, ...], str]]

BEST = "best"
NEWEST = "newest"

_FOLDER = "checkpoints"
_NAMES_SHOWN = 5
_log = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """A loaded checkpoint: the number of finished steps, the variables by unsharded name, and the manifest.

    The arrays are writable, C-contiguous, and belong to the caller.
    """

    step: int
    variables: dict[str, Array]
    manifest: Manifest


def load(path: str | os.PathLike[str], expected: Expected | None = None) -> Checkpoint:
    """Load the checkpoint directory ``path``. expected: name -> (shape, dtype) of all variables that it must hold.

    Raises CheckpointError if the checkpoint is missing, damaged or in another or newer format, or if its variables
    differ from ``expected``; NumericError if a value is not finite; SecurityError for symbolic links and special files;
    ResourceError if the checkpoint is larger than the memory of this machine.
    """
    path = Path(path)
    with _naming(path), _opened(path) as directory:
        found = _read_manifest(path, directory)
        if expected is not None:
            _require_fit(found, expected)
        _require_memory(found)
        variables: dict[str, Array] = {}
        for record in found.shards:
            variables.update(shard.unpack(record, _read_shard(record, directory)))
    return Checkpoint(found.step, variables, found)


def newest(directory: str | os.PathLike[str]) -> Path | None:
    """Return the path of the newest checkpoint in ``directory`` that can be loaded; None if there is none.

    Each candidate is read in full. A damaged checkpoint is skipped with a warning that names the reason.
    """
    directory = Path(directory)
    with _naming(directory):
        candidates = layout.committed(directory)
    for _, path in candidates:
        try:
            load(path)
        except UNUSABLE as error:
            _log.warning("skipping a checkpoint that cannot be used: %s", error)
        else:
            return path
    return None


def find(path: Path, which: str | None = None) -> Path:
    """Return the path of a checkpoint. path: a checkpoint, a folder of checkpoints, or the directory of a run.

    which: :data:`BEST` or :data:`NEWEST`; None for the best if it exists and is usable, otherwise the newest. If
    ``path`` is a checkpoint, ``which`` must be None. Raises CheckpointError if there is no such path or checkpoint.
    """
    if layout.step_of(path) is not None or path.is_file() or (path / MANIFEST_FILE).exists():
        if which is not None:
            raise CheckpointError(f"{path} is a checkpoint: {which!r} needs the directory of its run, or {path.parent}")
        return path
    if not path.exists():
        raise CheckpointError(f"{path}: no such directory; expected the directory of a run, or a checkpoint")
    folder = path / _FOLDER if (path / _FOLDER).is_dir() else path
    latest = newest(folder)
    if latest is None:
        raise CheckpointError(
            f"{path}: no usable checkpoint; expected a directory step-N, or the directory of a run with checkpoints"
        )
    return latest if which == NEWEST else _best(folder, latest, required=which == BEST)


def _best(folder: Path, latest: Path, *, required: bool) -> Path:
    """Return the best checkpoint that ``latest`` names; ``latest`` if the best one is unusable and not required."""
    step = load(latest).manifest.meta.best_step
    best = None if step is None else layout.committed_path(folder, step)
    if best == latest:
        return latest
    fault = _fault(best)
    if best is not None and not fault:
        return best
    if required:
        raise CheckpointError(f"{folder}: {fault}; only runs with checkpoint.keep_best=true keep it. Use {NEWEST!r}")
    if best is not None:
        _log.warning("%s: %s; using %s", folder, fault, latest.name)
    return latest


def _fault(best: Path | None) -> str:
    """Return the reason why the best checkpoint cannot be used; "" if it can be used."""
    if best is None:
        return "there is no best checkpoint"
    if not best.exists():
        return f"the best checkpoint, {best.name}, no longer exists"
    try:
        load(best)
    except UNUSABLE as error:
        return f"the best checkpoint, {best.name}, is unusable ({error})"
    return ""


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Prefix the message of an error that is raised in the block with the path of the checkpoint."""
    try:
        yield
    except (*UNUSABLE, ResourceError) as error:
        raise type(error)(f"{path}: {error}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror} ({error.filename or path.name})") from error


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a directory. Raises CheckpointError or SecurityError for any other path."""
    if not os.path.lexists(path):
        raise CheckpointError("there is no such checkpoint; expected a directory step-N")
    if path.is_symlink():
        raise SecurityError("is a symbolic link; expected a real directory")
    if path.is_file():
        refuse_foreign("the file", read_regular(path, PREFIX_BYTES))
        raise CheckpointError(f"is a file; expected a directory with {MANIFEST_FILE}")
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield directory
    finally:
        os.close(directory)


def _read_manifest(path: Path, directory: int) -> Manifest:
    raw = read_regular(Path(MANIFEST_FILE), MAX_MANIFEST_BYTES, directory)
    refuse_foreign(MANIFEST_FILE, raw)
    found = decode(raw)
    if layout.step_of(path) not in (None, found.step):
        raise CheckpointError(f"the manifest is for step {found.step}, but the directory is named {path.name}")
    return found


def _read_shard(record: ShardRecord, directory: int) -> bytes:
    payload = read_regular(Path(record.file), max(record.size, PREFIX_BYTES), directory)
    refuse_foreign(record.file, payload)
    if len(payload) != record.size:
        size = "longer" if len(payload) > record.size else "shorter"
        raise CheckpointError(f"{record.file} is damaged: it is {size} than the {record.size} bytes in the manifest")
    return payload


def _require_memory(found: Manifest) -> None:
    """Raise ResourceError, before memory is allocated, if the checkpoint is larger than the memory of this machine."""
    needed = sum(record.size for record in found.shards)
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > installed:
        raise ResourceError(f"needs {needed} bytes of memory, and this machine has {installed}; use another machine")


def _require_fit(found: Manifest, expected: Expected) -> None:
    stored = {variable.name: (variable.shape, variable.dtype) for variable in found.variables}
    wanted = {name: (tuple(shape), dtype) for name, (shape, dtype) in expected.items()}
    mismatched = [
        f"{name} is {stored[name][1]} {stored[name][0]}, expected {wanted[name][1]} {wanted[name][0]}"
        for name in sorted(stored.keys() & wanted.keys())
        if stored[name] != wanted[name]
    ]
    problems = (
        _listed("missing", sorted(wanted.keys() - stored.keys())),
        _listed("unexpected", sorted(stored.keys() - wanted.keys())),
        _listed("mismatched", mismatched),
    )
    if any(problems):
        raise CheckpointError(
            f"does not fit the network: {'; '.join(filter(None, problems))}. The checkpoint was written by another "
            "configuration of model, optimizer, precision or strategy"
        )


def _listed(kind: str, entries: list[str]) -> str:
    """Return text such as "2 missing: a, b" with the first few entries; "" if there are no entries."""
    if not entries:
        return ""
    more = f" and {len(entries) - _NAMES_SHOWN} more" if len(entries) > _NAMES_SHOWN else ""
    return f"{len(entries)} {kind}: {', '.join(entries[:_NAMES_SHOWN])}{more}"
