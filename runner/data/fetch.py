"""Fetch a published dataset into the cache."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.data.origins import ORIGINS, Archive, Origin
from runner.data.published import PublishedFiles, cache_root, is_cached, read_verified
from runner.errors import ConfigError, DataError
from runner.system.files import writing

Report = Callable[[str], None]


def fetch(name: str, cache_dir: str | Path | None = None) -> Path:
    """Fetch dataset ``name`` into ``cache_dir`` (None: the user's cache), print the progress, and return its folder.

    If the cached files are complete and intact, nothing is fetched. Raises ConfigError if ``name`` is not a published
    dataset, ResourceError if the cache cannot be written, DataError if every origin fails. Raises SecurityError if an
    archive has a link, a device or a path that leads outside of it.
    """
    if name not in ORIGINS:
        raise ConfigError(f"dataset {name!r} cannot be fetched; expected one of {', '.join(ORIGINS)}")
    published, origins = ORIGINS[name]
    return fetch_published(published, origins, cache_root(cache_dir), print)


def fetch_published(published: PublishedFiles, origins: tuple[Origin, ...], root: Path, report: Report) -> Path:
    """Fetch ``published`` into a folder below ``root``, from the first of ``origins`` that works.

    report: is called with each line of progress.
    """
    folder = root / published.name
    if is_cached(published, root):
        report(f"{published.name}: already in {folder}")
        return folder
    failures = []
    for origin in origins:
        megabytes = sum(archive.size for archive in origin.archives) / 1e6
        report(f"{published.name}: trying {origin.place} ({megabytes:.0f} MB)")
        try:
            with writing(f"the data cache {root}", "choose a writable folder with free space by --cache-dir DIR"):
                _fetch_from(origin, published, root)
        except DataError as error:
            report(f"{published.name}: {error}")
            failures.append(f"{origin.place}: {error}")
        else:
            report(f"{published.name}: stored in {folder}")
            return folder
    raise DataError(f"dataset {published.name!r} could not be fetched from any origin: " + "; ".join(failures))


def _fetch_from(origin: Origin, published: PublishedFiles, root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    # The scratch folder is in ``root``, so that the last step is a rename within one file system.
    with TemporaryDirectory(prefix=f".{published.name}-", dir=root) as scratch_name:
        scratch = Path(scratch_name)
        paths = [scratch / archive.filename for archive in origin.archives]
        for archive, path in zip(origin.archives, paths, strict=True):
            origin.obtain(archive, scratch)
            _verify_archive(path, archive)
        for filename, data in origin.decode(paths).items():
            (scratch / filename).write_bytes(data)
        for array in published.arrays:
            read_verified(scratch / array.filename, array)
        folder = root / published.name
        folder.mkdir(exist_ok=True)
        for array in published.arrays:
            os.replace(scratch / array.filename, folder / array.filename)


def _verify_archive(path: Path, archive: Archive) -> None:
    if not path.is_file():
        raise DataError(f"{archive.filename} was not downloaded")
    size = path.stat().st_size
    if size != archive.size:
        raise DataError(f"{archive.filename} has {size} bytes, expected {archive.size}")
    algorithm, _, expected = archive.checksum.partition(":")
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, algorithm).hexdigest()
    if found != expected:
        raise DataError(f"{archive.filename} is not the known file: {algorithm} is {found}, expected {expected}")
