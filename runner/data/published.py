"""Datasets that are published as files: their facts, and the cache that keeps them as IDX files.

The datasets are MNIST (LeCun, Cortes and Burges), Fashion-MNIST (Xiao, Rasul and Vollgraf 2017), CIFAR-10 (Krizhevsky
2009) and USPS (Hull 1994), in the split and the preparation of Rasmussen and Williams 2006.
The checksums are of the decoded IDX files, which are equal for all origins of a dataset.
"""

import hashlib
import math
import shlex
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Bounds, Positive, Real
from runner.data.altered import altered
from runner.data.dataset import Dataset, Facts, Normalisation, Split
from runner.data.settings import DatasetSettings, require_mean_and_std
from runner.errors import DataError
from runner.system.files import open_regular, user_cache_folder


def idx_header(shape: tuple[int, ...]) -> bytes:
    """Return the header of an IDX file that holds a uint8 array of ``shape``."""
    unsigned_byte = 8
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, unsigned_byte, len(shape), *shape)


def encode_idx(array: NDArray[np.uint8]) -> bytes:
    """Return ``array`` as an IDX file."""
    return b"".join((idx_header(array.shape), np.ascontiguousarray(array).data))


def decode_idx(data: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the array of ``shape`` in an IDX file, as a read-only view of ``data``; the header is not read."""
    return np.frombuffer(data, np.uint8, offset=len(idx_header(shape))).reshape(shape)


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
class PublishedFiles:
    """A dataset whose files have known checksums."""

    name: str
    arrays: tuple[CachedArray, ...]


@dataclass(frozen=True)
class PublishedDataset(PublishedFiles):
    """A dataset of images. shape: (C, H, W) of an image.

    arrays: the images and the labels of the train split, then those of the test split.
    """

    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    normalisation: Normalisation

    @property
    def facts(self) -> Facts:
        """Image shape, class names and example counts."""
        _, train_labels, _, test_labels = self.arrays
        return Facts.labelled(self.shape, self.class_names, train_labels.shape[0], test_labels.shape[0])


def cache_root(cache_dir: str | Path | None) -> Path:
    """Return the folder that holds one folder per dataset: ``cache_dir`` or, if None, ``data`` in the user's cache."""
    return user_cache_folder() / "data" if cache_dir is None else Path(cache_dir).expanduser()


def read_verified(path: Path, array: CachedArray) -> bytes:
    """Return the bytes of the file ``path``. Raises DataError if it is missing or differs from the known file."""
    try:
        with open_regular(path) as stream:
            # One more byte than expected is read, so that a file that is too long is detected.
            data = stream.read(array.size + 1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != array.sha256:
        fault = f"SHA-256 is {found}, expected {array.sha256} (read {len(data)} bytes, expected {array.size})"
        raise DataError(f"{path} is corrupt: {fault}")
    return data


def is_cached(published: PublishedFiles, root: Path) -> bool:
    """Return whether every file of the dataset is in the cache and intact."""
    try:
        for array in published.arrays:
            read_verified(root / published.name / array.filename, array)
    except DataError:
        return False
    return True


def require_cached(published: PublishedFiles, cache_dir: str | None) -> Path:
    """Return the folder of a dataset.

    If it does not exist, raises DataError with the command that fetches the dataset.
    """
    folder = cache_root(cache_dir) / published.name
    if not folder.is_dir():
        advice = f"get it with: {_remedy(published, cache_dir)}"
        raise DataError(f"dataset {published.name!r} is not in the cache: {folder} is missing; {advice}")
    return folder


def _remedy(published: PublishedFiles, cache_dir: str | None) -> str:
    place = f" --cache-dir {shlex.quote(str(cache_root(cache_dir)))}" if cache_dir is not None else ""
    return f"runner data fetch {published.name}{place}"


def read_files(published: PublishedFiles, cache_dir: str | None) -> list[NDArray[np.uint8]]:
    """Read all files from the cache. If reading fails, raises DataError with the command that fetches the dataset."""
    folder = require_cached(published, cache_dir)
    try:
        return [decode_idx(read_verified(folder / each.filename, each), each.shape) for each in published.arrays]
    except DataError as error:
        advice = f"get it again with: {_remedy(published, cache_dir)}"
        raise DataError(f"dataset {published.name!r}: {error}; {advice}") from error


def _published(
    name: str,
    shape: tuple[int, int, int],
    class_names: tuple[str, ...],
    normalisation: Normalisation,
    examples: tuple[int, int],
    *checksums: str,
) -> PublishedDataset:
    """Return a dataset of uint8 images. examples: numbers of train and test examples. checksums: SHA-256 by file."""
    sizes = shape if shape[0] > 1 else shape[1:]
    test = "test" if shape[0] > 1 else "t10k"
    files = [
        (f"{split}-{part}-idx{1 + len(rest)}-ubyte", (count, *rest))
        for split, count in zip(("train", test), examples, strict=True)
        for part, rest in (("images", sizes), ("labels", ()))
    ]
    arrays = tuple(CachedArray(*file, checksum) for file, checksum in zip(files, checksums, strict=True))
    return PublishedDataset(name, arrays, shape, class_names, normalisation)


MNIST = _published(
    "mnist",
    (1, 28, 28),
    tuple("0123456789"),
    Normalisation(255.0, (0.1307,), (0.3081,)),
    (60_000, 10_000),
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
FASHION_MNIST = _published(
    "fashion_mnist",
    (1, 28, 28),
    ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    Normalisation(255.0, (0.2860,), (0.3530,)),
    (60_000, 10_000),
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
CIFAR10 = _published(
    "cifar10",
    (3, 32, 32),
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    Normalisation(255.0, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    (50_000, 10_000),
    "1086b65fb2d8719d99846dc8bc5d5a52141422760ff01eb1e06619041c1670f9",
    "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554",
    "d4d62aa9f6b816a3be65053ddc66fdd27c1350e10d25345000fec0d9e2f9e2dd",
    "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40",
)
USPS = _published(
    "usps",
    (1, 16, 16),
    tuple("0123456789"),
    Normalisation(255.0, (0.2508,), (0.3011,)),
    (4_649, 4_649),
    "898bacd9c2b943727a985047fc83ecfafb0a0aa20a1f161deb19cec2f741f89f",
    "58a6b5d0f04f5ae724d7816af1fb55163b492a00e4f50676e9a104abffa24269",
    "2b72a43659d5469e28ca7745dbd6c1a33f0358a00074d55b29d1b626a777f667",
    "0a42b8bd1bb3f04705241f25f480eed314aa2ce8be7bbd552ca179071ff9149f",
)


@dataclass
class PublishedSettings(DatasetSettings):
    """Settings of a published dataset. published: its files and facts.

    size: side of the square, in pixels, to which every image is resized; null for the stored size. invert: whether
    light and dark are exchanged. noise: standard deviation of normal noise, as a fraction of the pixel range; the noise
    of an image is the same in every epoch and with every seed of the run. mean, std: one number per channel for
    ``(pixel / 255 - mean) / std``; null for the numbers of :attr:`published`.
    """

    size: Annotated[int, Bounds(1, 4096)] | None = None
    invert: bool = False
    noise: Annotated[float, Bounds(0, 10)] = 0.0
    mean: list[Real] | None = None
    std: list[Positive] | None = None

    published: ClassVar[PublishedDataset]

    def __post_init__(self) -> None:
        super().__post_init__()
        require_mean_and_std(self.mean, self.std, self.published.shape[0])

    def facts(self) -> Facts:
        facts, (channels, *sides) = self.published.facts, self.published.shape
        shape = (channels, *(sides if self.size is None else (self.size, self.size)))
        return replace(facts, fields={**facts.fields, "x": replace(facts.fields["x"], shape=shape)})

    def normalisation(self) -> Normalisation:
        """Return the configured normalisation or the published one; nothing is read."""
        if self.mean is None or self.std is None:
            return self.published.normalisation
        return Normalisation(self.published.normalisation.scale, tuple(self.mean), tuple(self.std))

    def require_present(self) -> None:
        require_cached(self.published, self.cache_dir)

    def load(self) -> Dataset:
        arrays = read_files(self.published, self.cache_dir)
        train, test = self._split("train", *arrays[:2]), self._split("test", *arrays[2:])
        return Dataset(self.name, train, test, self.normalisation())

    def _split(self, name: str, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Split:
        images, stream = images.reshape(-1, *self.published.shape), f"{self.published.name}/{name}/noise"
        x = altered(images, size=self.size, invert=self.invert, noise=self.noise, stream=stream)
        return Split({"x": x, "y": labels.astype(np.int64)})


@dataclass
class Mnist(PublishedSettings):
    """70,000 handwritten digits of 28x28 pixels; fetched with ``runner data fetch``."""

    name: str = "mnist"
    published = MNIST


@dataclass
class FashionMnist(PublishedSettings):
    """70,000 pictures of clothes, 28x28 grey; fetched with ``runner data fetch``."""

    name: str = "fashion_mnist"
    published = FASHION_MNIST


@dataclass
class Cifar10(PublishedSettings):
    """60,000 colour photographs in 10 classes, 32x32; fetched with ``runner data fetch``."""

    name: str = "cifar10"
    published = CIFAR10


@dataclass
class Usps(PublishedSettings):
    """9,298 handwritten digits of 16x16 pixels from envelopes; fetched with ``runner data fetch``."""

    name: str = "usps"
    published = USPS
