"""A custom dataset, horizontal and vertical bars with noise (after Foeldiak 1990), and a custom augmentation."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Bounds, Count, Seed
from runner.data.augmentation import Augmentation
from runner.data.dataset import Dataset, Facts, Normalisation, Split
from runner.data.settings import DatasetSettings
from runner.errors import ConfigError
from runner.plugin import Plugin

CLASSES = ("lying", "standing")


@dataclass
class Bars(DatasetSettings):
    """Square images with bars in one direction. The direction is the class.

    side: height and width of an image in pixels. bars: number of bars in each image. examples: size of the train split;
    the test split has a quarter as many. data_seed: seed of all draws, independent of the run's seed.
    """

    name: str = "bars"
    side: Annotated[int, Bounds(2, 1024)] = 12
    bars: Count = 2
    examples: Annotated[int, Bounds(8, 1_000_000)] = 1000
    data_seed: Seed = 0

    def __post_init__(self) -> None:
        if self.bars >= self.side:
            raise ConfigError(f"data.bars={self.bars}: expected fewer than data.side={self.side}")
        super().__post_init__()

    def facts(self) -> Facts:
        """Return shape, classes and counts, without drawing any image."""
        return Facts.labelled((1, self.side, self.side), CLASSES, self.examples, self.examples // 4)

    def load(self) -> Dataset:
        """Return both splits. Every worker draws the same images."""
        facts = self.facts()
        rng = np.random.default_rng(self.data_seed)
        train, test = (self._split(count, rng) for count in (facts.train_examples, facts.test_examples))
        return Dataset(self.name, train, test, Normalisation(scale=255.0, mean=(0.33,), std=(0.24,)))

    def _split(self, count: int, rng: np.random.Generator) -> Split:
        labels = np.arange(count, dtype=np.int64) % len(CLASSES)
        return Split({"x": np.stack([self._draw(int(label), rng) for label in labels]), "y": labels})

    def _draw(self, label: int, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return one image (1, side, side)."""
        pixels = rng.integers(0, 128, (self.side, self.side), dtype=np.uint8)
        pixels[rng.permutation(self.side)[: self.bars]] += 127
        return (pixels if label == 0 else pixels.T)[None]


@dataclass
class Cutout(Augmentation):
    """A black square at a random place of each training image (DeVries and Taylor 2017). size: its side in pixels."""

    name: str = "cutout"
    size: Count = 3

    draws = 2

    def apply(self, x: NDArray[Any], draws: NDArray[np.float64]) -> NDArray[Any]:
        """Return changed images (S, C, H, W). draws: the row and the column of the square's first pixel."""
        rows, columns = (
            np.abs(np.arange(side) - (draws[:, [axis]] * side).astype(int) - self.size // 2) <= self.size // 2
            for axis, side in enumerate(x.shape[2:])
        )
        return np.where(rows[:, None, :, None] & columns[:, None, None, :], 0, x).astype(x.dtype)


plugin = Plugin(datasets={"bars": Bars}, augmentations={"cutout": Cutout})
