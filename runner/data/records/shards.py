"""The files of a sharded set of records, found by a pattern, and the names of written shards."""

import re
from collections.abc import Sequence
from pathlib import Path

from runner.errors import DataError

_OF = re.compile(r"-(\d{5})-of-(\d{5})$")
_COUNTED = re.compile(r"@(\d{1,5})$")


def shard_name(name: str, number: int, shards: int) -> str:
    """Return the name of shard ``number``, such as "train-00003-of-00008"."""
    return f"{name}-{number:05d}-of-{shards:05d}"


def matching_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files below ``folder`` that match a pattern of :meth:`pathlib.Path.glob`, sorted by name.

    Raises DataError for an invalid pattern.
    """
    try:
        return sorted(path for path in folder.glob(pattern) if path.is_file())
    except (ValueError, NotImplementedError) as error:
        fault = f"{pattern!r} is no pattern below data.path={folder}: {error}"
        raise DataError(f"{fault}; expected a pattern such as train*") from error


def shard_paths(folder: Path, pattern: str) -> Sequence[Path]:
    """Return the files in ``folder`` that a pattern names, sorted by name.

    pattern: NAME@COUNT for the files NAME-00000-of-COUNT and so on, or a name with the wildcards ``*``, ``?`` and
    ``[...]``. Raises DataError if no file matches, or if a shard of NAME-NUMBER-of-COUNT is missing.
    """
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise DataError(f"shard pattern {pattern!r}: expected a pattern of files below data.path={folder}")
    if counted := _COUNTED.search(pattern):
        shards = int(counted[1])
        paths = [folder / shard_name(pattern[: counted.start()], number, shards) for number in range(shards)]
        _require_all(paths)
        return paths
    paths = [path for path in matching_files(folder, pattern) if not path.name.startswith(".")]
    if not paths:
        raise DataError(f"{folder} has no file {pattern}: expected shards of records like {shard_name('train', 0, 8)}")
    expected = {
        path.with_name(shard_name(path.name[: part.start()], number, int(part[2])))
        for path in paths
        if (part := _OF.search(path.name))
        for number in range(int(part[2]))
    }
    _require_all(sorted(expected))
    return paths


def _require_all(paths: Sequence[Path]) -> None:
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        first = f"{missing[0]} is missing" if missing else "the pattern names 0 shards"
        raise DataError(f"{first}: {len(missing)} of {len(paths)} shards are missing; restore them or edit the pattern")
