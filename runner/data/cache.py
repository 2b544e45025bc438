"""Published datasets as the cache keeps them: IDX files whose checksums are known in advance.

The checksums are those of the decoded arrays, so every origin of a dataset gives the same files."""

import hashlib
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runner.data.dataset import Dataset, Facts, Normalisation, Split
from runner.errors import DataError
from runner.system.files import open_regular, user_cache_folder

_UNSIGNED_BYTE = 8


def idx_header(shape: tuple[int, ...]) -> bytes:
    """Return the bytes that come before the data of a uint8 array of ``shape``."""
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, _UNSIGNED_BYTE, len(shape), *shape)


def encode_idx(array: NDArray[np.uint8]) -> bytes:
    """Return ``array`` as an IDX file."""
    return b"".join((idx_header(array.shape), np.ascontiguousarray(array).data))


def decode_idx(data: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the array of an IDX file that must be of ``shape``: a read-only view of ``data``.

    Raises ValueError if its header has another type or shape, or if its length does not fit.
    """
    expected = idx_header(shape)
    if data[: len(expected)] != expected:
        raise ValueError(f"not an IDX file of bytes of shape {shape}: it begins with {data[: len(expected)].hex()}")
    return np.frombuffer(data, np.uint8, offset=len(expected)).reshape(shape)


@dataclass(frozen=True)
class CachedArray:
    """One file of the cache: a uint8 array of ``shape`` and the SHA-256 of the whole file."""

    filename: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return len(idx_header(self.shape)) + math.prod(self.shape)


@dataclass(frozen=True)
class PublishedDataset:
    """A dataset whose files have known checksums. ``shape`` is the (C, H, W) of one image."""

    name: str
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    normalisation: Normalisation
    train_images: CachedArray
    train_labels: CachedArray
    test_images: CachedArray
    test_labels: CachedArray

    @property
    def arrays(self) -> tuple[CachedArray, ...]:
        """All files of the dataset."""
        return self.train_images, self.train_labels, self.test_images, self.test_labels

    @property
    def facts(self) -> Facts:
        """Shape, classes and counts."""
        return Facts(self.shape, self.class_names, self.train_labels.shape[0], self.test_labels.shape[0])


def default_cache_dir() -> Path:
    """Return ``runner/data`` under the user's cache folder."""
    return user_cache_folder() / "data"


def cache_root(cache_dir: str | Path | None) -> Path:
    """Return the folder that holds one folder per dataset: ``cache_dir``, or the default for None."""
    return default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser()


def read_verified(path: Path, array: CachedArray) -> bytes:
    """Return the bytes of ``path``. Raises DataError if it is missing or not exactly the known file."""
    try:
        with open_regular(path) as stream:
            # One byte more than expected shows that a file is too long.
            data = stream.read(array.size + 1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != array.sha256:
        raise DataError(
            f"{path} is corrupt: SHA-256 is {found}, expected {array.sha256} "
            f"(read {len(data)} bytes, expected {array.size})"
        )
    return data


def is_cached(published: PublishedDataset, root: Path) -> bool:
    """Return whether every file of the dataset is in the cache and verifies."""
    try:
        for array in published.arrays:
            read_verified(root / published.name / array.filename, array)
    except DataError:
        return False
    return True


def require_cached(published: PublishedDataset, cache_dir: str | None) -> Path:
    """Return the folder of a dataset; raises DataError, with the command that fetches it, if there is none."""
    folder = cache_root(cache_dir) / published.name
    if not folder.is_dir():
        raise DataError(
            f"dataset {published.name!r} is not in the cache: {folder} is missing; "
            f"get it with: {_remedy(published, cache_dir)}"
        )
    return folder


def _remedy(published: PublishedDataset, cache_dir: str | None) -> str:
    place = f" --cache-dir {cache_root(cache_dir)}" if cache_dir is not None else ""
    return f"runner data fetch {published.name}{place}"


def load_published(published: PublishedDataset, cache_dir: str | None) -> Dataset:
    """Read a dataset from the cache. Raises DataError, with the command to fetch it again, if it cannot."""
    folder = require_cached(published, cache_dir)
    try:
        train = _read_split(published, folder, published.train_images, published.train_labels)
        test = _read_split(published, folder, published.test_images, published.test_labels)
    except DataError as error:
        raise DataError(
            f"dataset {published.name!r}: {error}; get it again with: {_remedy(published, cache_dir)}"
        ) from error
    return Dataset(published.name, train, test, published.class_names, published.normalisation)


def _read_split(published: PublishedDataset, folder: Path, images: CachedArray, labels: CachedArray) -> Split:
    pixels, classes = (
        decode_idx(read_verified(folder / array.filename, array), array.shape) for array in (images, labels)
    )
    return Split(pixels.reshape(-1, *published.shape), classes.astype(np.int64))
