"""The facts and the contents of a dataset, and functions that split it into parts with the same class proportions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.kernels import philox


def held_out(examples: int, fraction: float) -> int:
    """Return how many of ``examples`` (2 or more) to hold out: ``fraction`` of them, rounded; at least 1, not all."""
    return min(max(round(examples * fraction), 1), examples - 1)


def stratified_split(
    labels: NDArray[np.int64], fraction: float, seed: int, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted indices (kept, held out) of a split that holds out ``fraction`` of every class.

    name: of the dataset. The examples of each class are drawn separately, by a pure function of the arguments.
    """
    classes, counts = np.unique(labels, return_counts=True)
    taken = [held_out(int(count), fraction) for count in counts]
    return _drawn(labels, dict(zip(classes.tolist(), taken, strict=True)), seed, f"{name}/split")


def validation_split(
    labels: NDArray[np.int64], examples: int, seed: int, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted indices (kept, held out) of a split that holds out ``examples`` (fewer than all) examples.

    The same fraction of every class is held out, rounded by the method of largest remainders, with random choice among
    equal remainders; no class is emptied unless necessary. The result is a pure function of the arguments.
    """
    classes, counts = np.unique(labels, return_counts=True)
    taken = counts * examples // len(labels)
    ties = philox.permutation(philox.key(seed, f"{name}/val"), len(classes))
    while left := examples - int(taken.sum()):
        # Level 0: a class that can give one more example; 1: a class that this would empty; 2: an empty class.
        level = (taken + 1 >= counts).astype(int) + (taken >= counts)
        order = np.lexsort((ties, taken * len(labels) - counts * examples, level))
        taken[order[: min(left, int((level == level.min()).sum()))]] += 1
    return _drawn(labels, dict(zip(classes.tolist(), taken.tolist(), strict=True)), seed, f"{name}/val")


def _drawn(
    labels: NDArray[np.int64], taken: Mapping[int, int], seed: int, stream: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted indices (kept, held out), where ``taken[label]`` random examples of each class are held out."""
    out = np.zeros(len(labels), bool)
    for label, count in taken.items():
        members = np.flatnonzero(labels == label)
        order = philox.permutation(philox.key(seed, f"{stream}/{label}"), len(members))
        out[members[order[:count]]] = True
    return np.flatnonzero(~out), np.flatnonzero(out)


@dataclass(frozen=True)
class Facts:
    """The facts of a dataset that are known without reading its images.

    shape: (C, H, W) of one image. class_names[i] is the name of label i. The other fields are the numbers of examples
    in each split; examples of the validation split do not count as train examples.
    """

    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    train_examples: int
    test_examples: int
    val_examples: int = 0

    @property
    def classes(self) -> int:
        """Number of classes; labels are 0..classes-1."""
        return len(self.class_names)

    def carved(self, val_fraction: float) -> "Facts":
        """Return the facts after ``val_fraction``, in [0, 1), of the train split becomes the validation split."""
        if not val_fraction:
            return self
        val = held_out(self.train_examples, val_fraction)
        return replace(self, train_examples=self.train_examples - val, val_examples=val)


@dataclass(frozen=True)
class Normalisation:
    """The conversion of stored pixels to network inputs: ``(pixel / scale - mean) / std``, mean and std per channel.

    scale: the largest possible value of a stored pixel, where 0 is the smallest; 1 if pixels can be any finite numbers.
    """

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def bounded(self) -> bool:
        """Whether stored pixels lie between 0 and ``scale``."""
        return self.scale != 1.0

    def apply(self, images: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a new array of the normalised ``images`` (S, C, H, W), uint8 or floats, computed in ``dtype``."""
        mean, std = (np.asarray(values, np.float64)[:, None, None] for values in (self.mean, self.std))
        inputs: NDArray[Any] = np.multiply(images, (1.0 / (self.scale * std)).astype(dtype), dtype=dtype)
        inputs -= (mean / std).astype(dtype)
        return inputs


@dataclass(frozen=True)
class Split:
    """Examples of one split: images (N, C, H, W) as stored, uint8 or floats; labels (N,) int64."""

    images: NDArray[Any]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """A labelled image dataset in memory. class_names[i] is the name of label i."""

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    normalisation: Normalisation

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width

    @property
    def facts(self) -> Facts:
        """Image shape, class names and example counts of this dataset, which has no validation split."""
        return Facts(self.shape, self.class_names, len(self.train), len(self.test))
