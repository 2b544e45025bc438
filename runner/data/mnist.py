"""MNIST (LeCun, Cortes and Burges): 60,000 + 10,000 grey 28x28 images of handwritten digits."""

from dataclasses import dataclass

from runner.data.cache import CachedArray, PublishedDataset
from runner.data.dataset import Normalisation
from runner.data.published import PublishedSettings

PUBLISHED = PublishedDataset(
    name="mnist",
    shape=(1, 28, 28),
    class_names=tuple("0123456789"),
    normalisation=Normalisation(scale=255.0, mean=(0.1307,), std=(0.3081,)),
    train_images=CachedArray(
        "train-images-idx3-ubyte",
        (60_000, 28, 28),
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    train_labels=CachedArray(
        "train-labels-idx1-ubyte",
        (60_000,),
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    test_images=CachedArray(
        "t10k-images-idx3-ubyte",
        (10_000, 28, 28),
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    test_labels=CachedArray(
        "t10k-labels-idx1-ubyte",
        (10_000,),
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


@dataclass
class Mnist(PublishedSettings):
    """70,000 handwritten digits of 28x28 pixels; to be fetched."""

    name: str = "mnist"
    published = PUBLISHED
