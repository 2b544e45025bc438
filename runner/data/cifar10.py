"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour 32x32 photographs in 10 classes."""

from dataclasses import dataclass

from runner.data.cache import CachedArray, PublishedDataset
from runner.data.dataset import Normalisation
from runner.data.published import PublishedSettings

PUBLISHED = PublishedDataset(
    name="cifar10",
    shape=(3, 32, 32),
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    normalisation=Normalisation(scale=255.0, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    train_images=CachedArray(
        "train-images-idx4-ubyte",
        (50_000, 3, 32, 32),
        "1086b65fb2d8719d99846dc8bc5d5a52141422760ff01eb1e06619041c1670f9",
    ),
    train_labels=CachedArray(
        "train-labels-idx1-ubyte",
        (50_000,),
        "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554",
    ),
    test_images=CachedArray(
        "test-images-idx4-ubyte",
        (10_000, 3, 32, 32),
        "d4d62aa9f6b816a3be65053ddc66fdd27c1350e10d25345000fec0d9e2f9e2dd",
    ),
    test_labels=CachedArray(
        "test-labels-idx1-ubyte",
        (10_000,),
        "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40",
    ),
)


@dataclass
class Cifar10(PublishedSettings):
    """60,000 colour photographs in 10 classes, 32x32; to be fetched."""

    name: str = "cifar10"
    published = PUBLISHED
