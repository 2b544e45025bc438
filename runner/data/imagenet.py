"""ImageNet, the photographs of ILSVRC 2012 (Russakovsky et al. 2015), in the user's files."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from runner.bounds import Bounds
from runner.data.dataset import Facts, Normalisation
from runner.data.image_folder import ImageFolder
from runner.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD

CLASSES, TRAIN_IMAGES, VALIDATION_IMAGES = 1000, 1_281_167, 50_000


@dataclass
class ImageNet(ImageFolder):
    """The user's copy of ImageNet: PATH/train/CLASS/*.JPEG and PATH/val/CLASS/*.JPEG.

    The published validation split is the test split. Without a path, runs can be planned and explained. The settings
    are those of :class:`~runner.data.image_folder.ImageFolder`. By default, images are decoded when a batch needs them.
    If neither the settings nor the preprocessing have mean and std, the usual values for ImageNet are used. For records
    of ImageNet, see :class:`~runner.data.tfrecord.TFRecord`.
    """

    SPLITS: ClassVar[tuple[str, str]] = ("train", "val")

    name: str = "imagenet"
    size: Annotated[int, Bounds(1, 65_536)] = 224
    stream: bool = True

    def known_normalisation(self) -> Normalisation | None:
        """Return the normalisation of the settings, the preprocessing or (RGB only) ImageNet; None if there is none."""
        usual = Normalisation(255.0, IMAGENET_MEAN, IMAGENET_STD) if self.channels == 3 else None
        return super().known_normalisation() or usual

    def published_facts(self) -> Facts:
        names = tuple(f"class {label}" for label in range(CLASSES))
        return Facts.labelled((self.channels, self.size, self.size), names, TRAIN_IMAGES, VALIDATION_IMAGES)
