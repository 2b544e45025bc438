"""Random changes to training examples: cropped and mirrored images, and augmentations from plugins."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Bounds
from runner.data.colour import DISTORTIONS
from runner.errors import ConfigError, require_one_of
from runner.kernels import philox
from runner.system.schema import LenientRecord, Violation

DRAWS_PER_IMAGE = 3


@dataclass
class Augmentation(ABC):
    """The base class of augmentations from plugins; the fields are the settings.

    draws: number of random numbers for each example. The numbers depend only on the seed, the step and the
    position of the example in the stream, so neither the number of workers nor a resume changes the numbers.
    """

    name: str = ""

    draws: ClassVar[int] = 1

    @abstractmethod
    def apply(self, x: NDArray[Any], draws: NDArray[np.float64]) -> NDArray[Any]:
        """Return changed examples of the shape and dtype of x, (S, ...) as stored. draws: (S, self.draws) in [0, 1)."""


AUGMENTATIONS: dict[str, type[Augmentation]] = {}
"""Augmentations of plugins by their names in the configuration."""


@dataclass
class Augment:
    """Random augmentation of each training example.

    crop_padding: width of the black border (stored value 0) that is added before a region of the original size is cut
    out at a random position; 0 for no crop. flip: whether to mirror each image left to right with probability 1/2.
    colour: "full", "fast" or "pca", a distortion of colours that is applied next, to images of uint8; null for none.
    others: name -> settings of an augmentation from a plugin; these are applied last, in this order.
    """

    crop_padding: Annotated[int, Bounds(0, 65_536)] = 0
    flip: bool = False
    colour: str | None = None
    others: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_one_of("data.augment.colour", self.colour, DISTORTIONS, optional=True)

    @property
    def of_images(self) -> bool:
        """Whether images are cropped or mirrored."""
        return self.crop_padding > 0 or self.flip

    def apply(self, images: NDArray[Any], draws: NDArray[np.float64]) -> NDArray[Any]:
        """Crop and mirror ``images`` (S, C, H, W). draws: (S, 3) numbers, for crop row, crop column and mirror."""
        if self.crop_padding:
            padding, sides = self.crop_padding, images.shape[2:]
            padded = np.pad(images, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
            windows = np.lib.stride_tricks.sliding_window_view(padded, sides, axis=(2, 3))
            row, column = (draws[:, :2] * (2 * padding + 1)).astype(np.int64).T
            images = windows[np.arange(len(images)), :, row, column]
        if self.flip:
            images = np.where(draws[:, 2, None, None, None] < 0.5, images[..., ::-1], images)
        return images

    def chosen(self) -> Sequence[Augmentation]:
        """Return the augmentations of plugins. Raises ConfigError for an unknown name or wrong settings."""
        found = []
        for name, settings in self.others.items():
            where = f"data.augment.others.{name}"
            if name not in AUGMENTATIONS:
                known = ", ".join(AUGMENTATIONS) or "none is loaded"
                raise ConfigError(f"{where}: expected an augmentation from a --plugin: {known}")
            if not isinstance(settings, Mapping):
                raise ConfigError(f"{where}: expected a section of keys, or {{}} for defaults, found {settings!r}")
            if unknown := settings.keys() - {each.name for each in fields(AUGMENTATIONS[name])}:
                raise ConfigError(f"{where}.{min(unknown)}: no such key")
            try:
                schema = LenientRecord(AUGMENTATIONS[name], complete=False)
                found.append(schema.read({"name": name, **settings}, where))
            except Violation as error:
                raise ConfigError(str(error)) from error
        return found

    def require_fitting(self, shape: tuple[int, ...], data: str) -> None:
        """Raise ConfigError for settings that do not fit examples x of this shape. data: name of the dataset."""
        self.chosen()
        if self.of_images and len(shape) != 3:
            examples = f"the examples of dataset {data!r} are not images (C, H, W) but have shape {shape}"
            raise ConfigError(f"data.augment: expected no crop and no flip, because {examples}")
        if self.colour and (len(shape) != 3 or shape[0] != 3):
            examples = f"the examples of dataset {data!r} are not RGB images (3, H, W) but have shape {shape}"
            raise ConfigError(f"data.augment.colour={self.colour}: expected null, because {examples}")
        smallest = min(shape[1:], default=0)
        if self.crop_padding and self.crop_padding >= smallest:
            expected = f"less than {smallest} pixels for dataset {data!r}, because a crop must not miss the image"
            raise ConfigError(f"data.augment.crop_padding={self.crop_padding}: expected {expected}")


class Augmenter:
    """The augmentation of the training examples of a dataset, with draws that depend on the run's seed."""

    def __init__(self, augment: Augment, seed: int, data: str) -> None:
        """Derive the keys of all draws from ``seed`` and from ``data``, the name of the dataset."""
        self._augment = augment
        self._key = philox.key(seed, f"{data}/augment")
        self._colour_key = philox.key(seed, f"{data}/augment/colour")
        others = {each.name: each for each in augment.chosen()}
        self._others = [(each, philox.key(seed, f"{data}/augment/{name}")) for name, each in others.items()]

    @property
    def changes(self) -> bool:
        """Whether any example is changed."""
        return self._augment.of_images or bool(self._augment.colour or self._others)

    def apply(self, x: NDArray[Any], positions: NDArray[np.int64], step: int) -> NDArray[Any]:
        """Return changed examples. x: (S, ...) as stored. positions: (S,) of the examples in the stream of a run."""
        if self._augment.of_images:
            x = self._augment.apply(x, philox.uniform(self._key, positions, DRAWS_PER_IMAGE, step))
        if self._augment.colour:
            x = self._distorted(x, self._augment.colour, positions, step)
        for augmentation, key in self._others:
            changed = augmentation.apply(x, philox.uniform(key, positions, augmentation.draws, step))
            if changed.shape != x.shape or changed.dtype != x.dtype:
                found, expected = (f"{each.dtype}{list(each.shape)}" for each in (changed, x))
                fault = f"apply returned {found}; expected the shape and dtype of its input, {expected}"
                raise ConfigError(f"data.augment.others.{augmentation.name}: {fault}")
            x = changed
        return x

    def _distorted(self, x: NDArray[Any], colour: str, positions: NDArray[np.int64], step: int) -> NDArray[Any]:
        if x.dtype != np.uint8:
            raise ConfigError(f"data.augment.colour={colour}: expected images of 8 bits per channel, found {x.dtype}")
        distortion = DISTORTIONS[colour]
        draws = philox.uniform(self._colour_key, positions, distortion.draws, step)
        pixels = (each / np.float32(255) for each in x)
        changed = [distortion.apply(image, own) for image, own in zip(pixels, draws, strict=True)]
        return np.rint(255 * np.clip(np.reshape(changed, x.shape), 0, 1)).astype(np.uint8)
