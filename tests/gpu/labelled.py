"""Labelled images for training on a GPU machine without network access."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.data.digits import Digits

Array = NDArray[Any]

_SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abfgcd")
"""The segments of each digit on a seven-segment display."""

_PLACES = {
    "a": (slice(0, 1), slice(1, 5)),
    "b": (slice(0, 5), slice(4, 5)),
    "c": (slice(4, 9), slice(4, 5)),
    "d": (slice(8, 9), slice(1, 5)),
    "e": (slice(4, 9), slice(0, 1)),
    "f": (slice(0, 5), slice(0, 1)),
    "g": (slice(4, 5), slice(1, 5)),
}


@dataclass(frozen=True)
class Labelled:
    """Images (N, 1, H, W) float32 with a mean near zero and labels (N,) int64, for training and for the test."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array


def drawn(count: int = 4096, test: int = 1024, side: int = 16) -> Labelled:
    """Digits of a seven-segment display, each moved by up to three pixels, under noise; always the same."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, count + test)
    images = random.normal(0.0, 0.4, (count + test, 1, side, side)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        top, left = random.integers(0, 4, 2)
        for segment in _SEGMENTS[label]:
            rows, columns = _PLACES[segment]
            image[0, top : top + 9, left : left + 5][rows, columns] += 2.0
    return Labelled(images[:count], labels[:count], images[count:], labels[count:])


def digits() -> Labelled:
    """The 1,797 handwritten digits of scikit-learn with the test split of runner."""
    found = Digits().load()
    x, x_test = (found.normalisation.apply(s.images, np.dtype(np.float32)) - 0.3 for s in (found.train, found.test))
    return Labelled(x, found.train.labels, x_test, found.test.labels)


def mnist(path: Path) -> Labelled:
    """The 70,000 of MNIST, from an .npz file of bytes (N, 28, 28)."""
    with np.load(path) as file:
        x, x_test = ((file[name][:, None] / np.float32(255) - 0.13) / 0.31 for name in ("x_train", "x_test"))
        y, y_test = (file[name].astype(np.int64) for name in ("y_train", "y_test"))
    return Labelled(x.astype(np.float32), y, x_test.astype(np.float32), y_test)


def available(mnist_file: Path | None) -> list[str]:
    """Return the names of the available data sets."""
    return ["drawn", *(["digits"] if find_spec("sklearn") else []), *(["mnist"] if mnist_file else [])]


@dataclass(frozen=True)
class Shuffled:
    """An input source: batches of the examples in a new order in every epoch, and the test split in order."""

    data: Labelled
    batch: int
    test_batch: int

    def read(self, split: str, step: int, lo: int, hi: int) -> Mapping[str, Array]:
        """Return examples lo..hi-1 of a batch; a test batch beyond the end is padded with masked examples."""
        if split == "test":
            wanted = np.arange(step * self.test_batch, (step + 1) * self.test_batch)[lo:hi]
            count, x, y = len(self.data.y_test), self.data.x_test, self.data.y_test
        else:
            steps = len(self.data.y) // self.batch
            order = _order(len(self.data.y), step // steps)
            wanted = order[step % steps * self.batch :][: self.batch][lo:hi]
            count, x, y = len(order), self.data.x, self.data.y
        taken = np.minimum(wanted, count - 1)
        return {"x": x[taken], "y": y[taken], "index": wanted, "mask": (wanted < count).astype(np.float32)}


@cache
def _order(count: int, epoch: int) -> Array:
    return np.random.default_rng(epoch).permutation(count)
