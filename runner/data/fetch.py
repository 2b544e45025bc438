"""Bringing a published dataset into the cache, from the first of its origins that gives the right bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.data.cache import PublishedDataset, cache_root, is_cached, read_verified
from runner.data.origins import ORIGINS, Archive, Origin
from runner.errors import ConfigError, DataError, ResourceError

Report = Callable[[str], None]


def fetch(name: str, cache_dir: str | Path | None = None, report: Report = print) -> Path:
    """Fetch dataset ``name`` into ``cache_dir`` (None: the user's cache) and return its folder.

    A complete, intact cache is left alone; anything else is replaced. ``report`` gets a line per thing tried.

    Raises ConfigError for a name that is not fetched, ResourceError if the cache cannot be written, DataError
    if no origin has the data, and SecurityError if an archive tries to reach outside of itself.
    """
    if name not in ORIGINS:
        raise ConfigError(f"dataset {name!r} is not one that is fetched; those are: {', '.join(ORIGINS)}")
    published, origins = ORIGINS[name]
    return fetch_published(published, origins, cache_root(cache_dir), report)


def fetch_published(published: PublishedDataset, origins: tuple[Origin, ...], root: Path, report: Report) -> Path:
    """Fetch ``published`` from the first of ``origins`` that works into a folder under ``root``."""
    folder = root / published.name
    if is_cached(published, root):
        report(f"{published.name}: already in {folder}")
        return folder
    failures = []
    for origin in origins:
        megabytes = sum(archive.size for archive in origin.archives) / 1e6
        report(f"{published.name}: trying {origin.place} ({megabytes:.0f} MB)")
        try:
            _fetch_from(origin, published, root)
        except DataError as error:
            report(f"{published.name}: {error}")
            failures.append(f"{origin.place}: {error}")
        except OSError as error:
            raise ResourceError(f"cannot write the data cache {root}: {error}") from error
        else:
            report(f"{published.name}: stored in {folder}")
            return folder
    raise DataError(f"dataset {published.name!r} could not be fetched from any place: " + "; ".join(failures))


def _fetch_from(origin: Origin, published: PublishedDataset, root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    # Beside its destination, so that the last step is a rename within one file system.
    with TemporaryDirectory(prefix=f".{published.name}-", dir=root) as scratch_name:
        scratch = Path(scratch_name)
        for archive in origin.archives:
            origin.obtain(archive, scratch)
            _verify_archive(scratch / archive.filename, archive)
        for filename, data in origin.decode(scratch).items():
            (scratch / filename).write_bytes(data)
        for array in published.arrays:
            read_verified(scratch / array.filename, array)
        folder = root / published.name
        folder.mkdir(exist_ok=True)
        for array in published.arrays:
            os.replace(scratch / array.filename, folder / array.filename)


def _verify_archive(path: Path, archive: Archive) -> None:
    if not path.is_file():
        raise DataError(f"{archive.filename} did not arrive")
    size = path.stat().st_size
    if size != archive.size:
        raise DataError(f"{archive.filename} has {size} bytes, expected {archive.size}")
    algorithm, _, expected = archive.checksum.partition(":")
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, algorithm).hexdigest()
    if found != expected:
        raise DataError(f"{archive.filename} is not the known file: {algorithm} is {found}, expected {expected}")
