"""Images of any shape and number, and texts of any length, made in memory, for benchmarks and tests."""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Bounds, Count, Seed
from runner.data.dataset import Dataset, Facts, Normalisation, Split
from runner.data.settings import DatasetSettings
from runner.data.text import END, UNKNOWN, TextSettings, Tokens
from runner.errors import require
from runner.kernels import philox

_PATTERN_SIDE = 8
# Number of random words per draw, small enough for the CPU's cache.
_WORDS_PER_CHUNK = 1 << 17
# A pixel is the sum of two uniform bytes, each halved. On a scale of 0 to 1: mean 1/2, variance 2 * (1/2)**2 / 12.
_MEAN, _STD = 0.5, 0.204


@dataclass
class Synthetic(DatasetSettings):
    """Images of any shape and number, made in memory: each is the pattern of its class plus noise.

    Example i has label i % classes. shape: (C, H, W). examples: size of the train split. data_seed: seed of all draws.
    """

    name: str = "synthetic"
    shape: list[Annotated[int, Bounds(1, 65_536)]] = field(default_factory=lambda: [3, 224, 224])
    classes: Annotated[int, Bounds(1, 1_000_000)] = 1000
    examples: Count = 512
    test_examples: Count = 128
    data_seed: Seed = 0

    def __post_init__(self) -> None:
        require(len(self.shape) == 3, "data.shape", list(self.shape), "three sizes, [channels, height, width]")
        super().__post_init__()

    def facts(self) -> Facts:
        channels, height, width = self.shape
        names = tuple(f"class {label}" for label in range(self.classes))
        return Facts.labelled((channels, height, width), names, self.examples, self.test_examples)

    def normalisation(self) -> Normalisation:
        """Return the normalisation by the expected mean and standard deviation of all pixels; nothing is drawn."""
        channels = self.shape[0]
        return Normalisation(scale=255.0, mean=(_MEAN,) * channels, std=(_STD,) * channels)

    def load(self) -> Dataset:
        """Draw both splits, which take C * H * W bytes per example."""
        train, test = self._split("train", self.examples), self._split("test", self.test_examples)
        return Dataset(self.name, train, test, self.normalisation())

    def _split(self, split: str, examples: int) -> Split:
        labels = np.arange(examples, dtype=np.int64) % self.classes
        images = np.empty((examples, *self.shape), np.uint8)
        chunk = max(1, _WORDS_PER_CHUNK * 4 // images[0].size)
        for start in range(0, examples, chunk):
            rows = np.arange(start, min(start + chunk, examples), dtype=np.int64)
            noise = self._draw_bytes(f"noise/{split}", rows, tuple(self.shape))
            # Each summand is at most 127, so the sum fits in a byte.
            images[rows] = self._patterns(labels[rows]) // 2 + noise // 2
        return Split({"x": images, "y": labels})

    def _patterns(self, labels: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the patterns of S labels, (S, C, H, W): each is a small random image enlarged to (C, H, W)."""
        channels, height, width = self.shape
        picture = self._draw_bytes("pattern", labels, (channels, _PATTERN_SIDE, _PATTERN_SIDE))
        row, column = (np.arange(side) * _PATTERN_SIDE // side for side in (height, width))
        return picture[:, :, row[:, None], column]

    def _draw_bytes(self, stream: str, index: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Draw one uint8 array of ``shape`` for each entry of ``index``."""
        count = int(np.prod(shape))
        words = philox.bits(philox.key(self.data_seed, f"{self.name}/{stream}"), index, (count + 3) // 4)
        return words.astype("<u4").view(np.uint8)[:, :count].reshape(len(index), *shape)


@dataclass
class SyntheticText(TextSettings):
    """A text without lines, made in memory: word v, counted from 0, has a probability proportional to 1 / (v + 1).

    tokens, test_tokens: lengths of the splits. data_seed: seed of all draws.
    """

    name: str = "synthetic_text"
    tokens: Count = 20_000
    test_tokens: Count = 2_000
    data_seed: Seed = 0

    def read(self) -> Tokens:
        return Tokens(self._names, self._drawn("train", self.tokens), self._drawn("test", self.test_tokens))

    def facts(self) -> Facts:
        return self.facts_for(self._names, self.tokens, self.test_tokens)

    @property
    def _names(self) -> tuple[str, ...]:
        return (END, UNKNOWN, *(f"word {number}" for number in range(2, self.vocabulary)))

    def _drawn(self, split: str, count: int) -> NDArray[np.int32]:
        words = philox.bits(philox.key(self.data_seed, f"{self.name}/{split}"), np.arange(1), count)[0]
        sums = np.cumsum(1.0 / np.arange(1, self.vocabulary + 1))
        found: NDArray[np.int64] = np.searchsorted(sums / sums[-1], words / 2.0**32, side="right")
        return np.minimum(found, self.vocabulary - 1).astype(np.int32)
