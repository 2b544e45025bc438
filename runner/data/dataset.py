"""The facts and the examples of a dataset, and functions that split it into parts with the same class proportions."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.errors import DataError
from runner.fields import BEGINS, Field, labelled
from runner.kernels import philox

Integers = NDArray[np.int64]


def held_out(examples: int, fraction: float) -> int:
    """Return the number of ``examples`` (2 or more) to hold out: ``fraction`` of them, rounded; at least 1, not all."""
    return min(max(round(examples * fraction), 1), examples - 1)


def stratified_split(labels: Integers, fraction: float, seed: int, name: str) -> tuple[Integers, Integers]:
    """Return the sorted indices (kept, held out) of a split that holds out ``fraction`` of every class.

    name: the name of the dataset. The examples of each class are drawn separately, by a pure function of the arguments.
    """
    taken = {label: held_out(count, fraction) for label, count in Counter(labels.tolist()).items()}
    return _drawn(labels, taken, seed, f"{name}/split")


def validation_split(labels: Integers, examples: int, seed: int, name: str) -> tuple[Integers, Integers]:
    """Return the sorted indices (kept, held out) of a split that holds out ``examples`` (fewer than all) examples.

    The same fraction of every class is held out, rounded by the method of largest remainders; equal remainders are
    ordered at random. No class is emptied unless necessary. The result is a pure function of the arguments.
    """
    classes, counts = np.unique(labels, return_counts=True)
    taken = counts * examples // len(labels)
    ties = philox.permutation(philox.key(seed, f"{name}/val"), len(classes))
    while left := examples - int(taken.sum()):
        # Level 0: a class that can give one more example; 1: a class with one example left; 2: an empty class.
        level = (taken + 1 >= counts).astype(int) + (taken >= counts)
        order = np.lexsort((ties, taken * len(labels) - counts * examples, level))
        taken[order[: min(left, int((level == level.min()).sum()))]] += 1
    return _drawn(labels, dict(zip(classes.tolist(), taken.tolist(), strict=True)), seed, f"{name}/val")


def _drawn(labels: Integers, taken: Mapping[int, int], seed: int, stream: str) -> tuple[Integers, Integers]:
    """Return the sorted indices (kept, held out), where ``taken[label]`` random examples of each class are held out."""
    out = np.zeros(len(labels), bool)
    for label, count in taken.items():
        members = np.flatnonzero(labels == label)
        order = philox.permutation(philox.key(seed, f"{stream}/{label}"), len(members))
        out[members[order[:count]]] = True
    return np.flatnonzero(~out), np.flatnonzero(out)


@dataclass(frozen=True)
class Facts:
    """The facts of a dataset that are known without reading its examples.

    fields: name -> field of an example; the field x is the network's input. If the field y is a label, its names are
    the class names. The other facts are numbers of examples; ``train_examples`` does not count the validation split.
    """

    fields: Mapping[str, Field]
    train_examples: int
    test_examples: int
    val_examples: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.fields, Mapping):  # a plugin's dataset may give anything
            raise TypeError(f"Facts: got the fields {self.fields}, expected a dict; for classes use Facts.labelled()")

    @classmethod
    def labelled(
        cls, shape: tuple[int, ...], class_names: tuple[str, ...], train_examples: int, test_examples: int
    ) -> "Facts":
        """Return the facts of classified examples. shape: of x, such as (C, H, W). class_names: one per label."""
        return cls(labelled(shape, class_names), train_examples, test_examples)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input x, such as (C, H, W) of an image."""
        return self.fields["x"].shape

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each label of the field y; () if y is not a label."""
        label = self.fields.get("y")
        return label.names if label is not None and label.is_label else ()

    @property
    def classes(self) -> int:
        """Number of classes; labels are 0..classes-1."""
        return len(self.class_names)


@dataclass(frozen=True)
class Normalisation:
    """The conversion of stored numbers to network inputs: ``(x / scale - mean) / std``, mean and std per channel.

    The channels are the first axis of an example. scale: the largest possible stored number if 0 is the smallest, as
    for pixels; 1 if stored numbers can be any finite numbers.
    """

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def bounded(self) -> bool:
        """Whether stored numbers lie between 0 and ``scale``."""
        return self.scale != 1.0

    def apply(self, stored: NDArray[Any], dtype: np.dtype[Any], *, in_place: bool = False) -> NDArray[Any]:
        """Return the examples ``stored`` (S, C, ...), uint8 or floats, normalised and in ``dtype``.

        Numbers without bounds are rounded to ``dtype`` after they are normalised, because they can be too large before.
        in_place: whether ``stored`` may be overwritten; else the result is a new array.
        """
        channels = (-1, *(1 for _ in stored.shape[2:]))
        mean, std = (np.asarray(values, np.float64).reshape(channels) for values in (self.mean, self.std))
        exact = dtype if self.bounded else np.result_type(stored, dtype)
        out = stored if in_place and stored.dtype == exact else None
        inputs: NDArray[Any] = np.multiply(stored, (1.0 / (self.scale * std)).astype(exact), out=out, dtype=exact)
        inputs -= (mean / std).astype(exact)
        return inputs.astype(dtype, copy=False)


class Examples(ABC):
    """The examples of a split, in memory or read when a batch needs them. Threads may read concurrently."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of examples N."""

    @property
    @abstractmethod
    def strata(self) -> Integers:
        """(N,): the label of each example; splits keep the proportions of labels. All 0 if there are no labels."""

    @property
    def is_sequence(self) -> bool:
        """Whether the examples continue each other (field :data:`~runner.fields.BEGINS`)."""
        return False

    @property
    def domains(self) -> Integers:
        """(N,): the number of the domain of each example. All 0 if there is one domain."""
        return np.zeros(len(self), np.int64)

    @abstractmethod
    def take(self, examples: Integers) -> Mapping[str, NDArray[Any]]:
        """Return copies of the examples with these indices (S,), by field: field -> (S, ...).

        Images that the dataset's preprocessing decodes are an array of :class:`EncodedImage` objects, (S,). Raises
        DataError if an example cannot be read.
        """

    @property
    def in_memory(self) -> bool:
        """Whether :meth:`take` reads no file."""
        return False

    @property
    def shards(self) -> Integers:
        """The numbers of examples in each shard, such as a file, in the order of the examples. Their sum is N."""
        return np.array([len(self)], np.int64)

    def only(self, examples: Integers) -> "Examples":
        """Return the examples with these sorted indices as a split."""
        return Subset(self, examples)


@dataclass(frozen=True)
class Split(Examples):
    """Examples in memory.

    arrays: field -> (N, ...): x as stored, uint8 or floats, such as images (N, C, H, W); labels as int64.
    domain_numbers: (N,) int64, the domain of each example, from 0; None for one domain. A train batch is of one domain.
    """

    arrays: Mapping[str, NDArray[Any]]
    domain_numbers: Integers | None = None

    def __len__(self) -> int:
        return len(self.arrays["x"])

    def __getitem__(self, field: str) -> NDArray[Any]:
        return self.arrays[field]

    @property
    def is_sequence(self) -> bool:
        return BEGINS in self.arrays

    @property
    def strata(self) -> Integers:
        y = self.arrays.get("y")
        labels = y is not None and y.ndim == 1 and y.dtype.kind in "iu"
        return np.asarray(y, np.int64) if y is not None and labels else np.zeros(len(self), np.int64)

    @property
    def domains(self) -> Integers:
        return np.zeros(len(self), np.int64) if self.domain_numbers is None else self.domain_numbers

    @property
    def in_memory(self) -> bool:
        return True

    def take(self, examples: Integers) -> Mapping[str, NDArray[Any]]:
        return {name: values[examples] for name, values in self.arrays.items()}

    def only(self, examples: Integers) -> "Split":
        """Return copies of the examples with these indices as a split, so that the other examples can be released."""
        return Split(self.take(examples), None if self.domain_numbers is None else self.domain_numbers[examples])


@dataclass(frozen=True)
class Subset(Examples):
    """Some examples of the split ``whole``, without a copy. indices: the sorted indices of these examples."""

    whole: Examples
    indices: Integers

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def strata(self) -> Integers:
        return self.whole.strata[self.indices]

    @property
    def domains(self) -> Integers:
        return self.whole.domains[self.indices]

    @property
    def in_memory(self) -> bool:
        return self.whole.in_memory

    def take(self, examples: Integers) -> Mapping[str, NDArray[Any]]:
        """Return copies of the examples at these positions among the examples of the subset."""
        return self.whole.take(self.indices[examples])

    @property
    def shards(self) -> Integers:
        """The numbers of examples of the subset in each shard of the whole split."""
        return np.diff(np.searchsorted(self.indices, np.cumsum(self.whole.shards)), prepend=0)


@dataclass(frozen=True)
class EncodedImage:
    """An image that is not decoded yet.

    content: a whole JPEG or PNG file. where: name of the image for messages: a file, or a file, record and offset.
    boxes: (K, 4) float32, bounding boxes (top, left, bottom, right) as fractions of height and width; K may be 0.
    """

    content: bytes
    where: str
    boxes: NDArray[np.float32] | None = None


class UndecodableImageError(DataError):
    """An encoded image is damaged or has an unsupported format."""


class Preprocessing(ABC):
    """The conversion of encoded images to arrays of one shape. Several threads may call the methods concurrently."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """The shape (C, H, W) of every image."""

    @property
    @abstractmethod
    def draws(self) -> int:
        """The number of random numbers that :meth:`train` needs for an image."""

    @abstractmethod
    def train(self, image: EncodedImage, draws: NDArray[np.float64]) -> NDArray[Any]:
        """Return a randomly distorted image (C, H, W), uint8 or float32 of 0 to 255. draws: (D,) numbers in [0, 1).

        Raises UndecodableImageError.
        """

    @abstractmethod
    def evaluate(self, image: EncodedImage) -> NDArray[Any]:
        """Return an image (C, H, W) for an evaluation, uint8 of 0 to 255. Raises UndecodableImageError."""


@dataclass(frozen=True)
class Dataset:
    """A dataset whose splits have the fields of its :class:`Facts`.

    preprocessing: the conversion of images that are stored encoded; None if examples are stored as arrays. skip_errors:
    the number of undecodable images that a process tolerates.
    """

    name: str
    train: Examples
    test: Examples
    normalisation: Normalisation
    preprocessing: Preprocessing | None = None
    skip_errors: int = 0
