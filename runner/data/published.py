"""Datasets that are published as files and read from the cache.

MNIST (LeCun, Cortes and Burges), Fashion-MNIST (Xiao, Rasul and Vollgraf 2017), CIFAR-10 (Krizhevsky 2009).
"""

from dataclasses import dataclass
from typing import ClassVar

from runner.data.cache import CachedArray, PublishedDataset, load_published, require_cached
from runner.data.dataset import Dataset, Facts, Normalisation
from runner.data.settings import DatasetSettings


def _published(
    name: str,
    shape: tuple[int, int, int],
    class_names: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    examples: tuple[int, int],
    checksums: tuple[str, str, str, str],
) -> PublishedDataset:
    """Describe a dataset of bytes. examples: of train and test. checksums: of the images and labels of each split."""
    sizes = shape if shape[0] > 1 else shape[1:]
    test = "test" if shape[0] > 1 else "t10k"
    files = [
        (f"{split}-{part}-idx{1 + len(rest)}-ubyte", (count, *rest))
        for split, count in zip(("train", test), examples, strict=True)
        for part, rest in (("images", sizes), ("labels", ()))
    ]
    arrays = (CachedArray(*file, checksum) for file, checksum in zip(files, checksums, strict=True))
    return PublishedDataset(name, shape, class_names, Normalisation(255.0, mean, std), *arrays)


MNIST = _published(
    "mnist",
    (1, 28, 28),
    tuple("0123456789"),
    (0.1307,),
    (0.3081,),
    (60_000, 10_000),
    (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)
FASHION_MNIST = _published(
    "fashion_mnist",
    (1, 28, 28),
    ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    (0.2860,),
    (0.3530,),
    (60_000, 10_000),
    (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)
CIFAR10 = _published(
    "cifar10",
    (3, 32, 32),
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    (0.4914, 0.4822, 0.4465),
    (0.2470, 0.2435, 0.2616),
    (50_000, 10_000),
    (
        "1086b65fb2d8719d99846dc8bc5d5a52141422760ff01eb1e06619041c1670f9",
        "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554",
        "d4d62aa9f6b816a3be65053ddc66fdd27c1350e10d25345000fec0d9e2f9e2dd",
        "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40",
    ),
)


@dataclass
class PublishedSettings(DatasetSettings):
    """Settings of one such dataset. published: its files and facts."""

    published: ClassVar[PublishedDataset]

    def facts(self) -> Facts:
        """Return shape, classes and counts; nothing is read."""
        return self.published.facts

    def normalisation(self) -> Normalisation:
        """Return the known normalisation; nothing is read."""
        return self.published.normalisation

    def require_present(self) -> None:
        """Raise DataError if the dataset was not fetched."""
        require_cached(self.published, self.cache_dir)

    def load(self) -> Dataset:
        """Read the cache. Raises DataError if the dataset was not fetched or is corrupt."""
        return load_published(self.published, self.cache_dir)


@dataclass
class Mnist(PublishedSettings):
    """70,000 handwritten digits of 28x28 pixels; to be fetched."""

    name: str = "mnist"
    published = MNIST


@dataclass
class FashionMnist(PublishedSettings):
    """70,000 pictures of clothes, 28x28 grey; to be fetched."""

    name: str = "fashion_mnist"
    published = FASHION_MNIST


@dataclass
class Cifar10(PublishedSettings):
    """60,000 colour photographs in 10 classes, 32x32; to be fetched."""

    name: str = "cifar10"
    published = CIFAR10
