"""ImageNet, the photographs of ILSVRC 2012 (Russakovsky et al. 2015), in the user's files."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from runner.bounds import Bounds, Positive
from runner.data.dataset import Facts
from runner.data.image_folder import ImageFolder

CLASSES, TRAIN_IMAGES, VALIDATION_IMAGES = 1000, 1_281_167, 50_000


@dataclass
class ImageNet(ImageFolder):
    """The user's copy of ImageNet: PATH/train/CLASS/*.JPEG and PATH/val/CLASS/*.JPEG.

    The published validation split is the test split. Without a path, runs can be planned and explained. The settings
    are those of :class:`~runner.data.image_folder.ImageFolder`. All images are loaded into memory, 200 GB with
    the default size, which ``max_bytes`` must allow.
    """

    SPLITS: ClassVar[tuple[str, str]] = ("train", "val")

    name: str = "imagenet"
    size: Annotated[int, Bounds(1, 65_536)] = 224
    mean: list[Annotated[float, Bounds(-1e38, 1e38)]] | None = field(default_factory=lambda: [0.485, 0.456, 0.406])
    std: list[Positive] | None = field(default_factory=lambda: [0.229, 0.224, 0.225])

    def published_facts(self) -> Facts:
        """Return the numbers of images and classes of ILSVRC 2012."""
        names = tuple(f"class {label}" for label in range(CLASSES))
        return Facts.labelled((self.channels, self.size, self.size), names, TRAIN_IMAGES, VALIDATION_IMAGES)
