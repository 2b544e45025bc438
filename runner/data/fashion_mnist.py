"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 60,000 + 10,000 grey 28x28 images of clothing."""

from dataclasses import dataclass

from runner.data.cache import CachedArray, PublishedDataset
from runner.data.dataset import Normalisation
from runner.data.published import PublishedSettings

PUBLISHED = PublishedDataset(
    name="fashion_mnist",
    shape=(1, 28, 28),
    class_names=(
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    normalisation=Normalisation(scale=255.0, mean=(0.2860,), std=(0.3530,)),
    train_images=CachedArray(
        "train-images-idx3-ubyte",
        (60_000, 28, 28),
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    train_labels=CachedArray(
        "train-labels-idx1-ubyte",
        (60_000,),
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    test_images=CachedArray(
        "t10k-images-idx3-ubyte",
        (10_000, 28, 28),
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    test_labels=CachedArray(
        "t10k-labels-idx1-ubyte",
        (10_000,),
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)


@dataclass
class FashionMnist(PublishedSettings):
    """70,000 pictures of clothes, 28x28 grey; to be fetched."""

    name: str = "fashion_mnist"
    published = PUBLISHED
