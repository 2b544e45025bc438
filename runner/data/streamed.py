"""Splits whose examples are read from files when a batch needs them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.data.dataset import EncodedImage, Examples, Split, Subset, UndecodableImageError
from runner.data.records.description import Description
from runner.data.records.example import Value, decode
from runner.data.records.index import ShardIndex
from runner.errors import DataError
from runner.system.files import open_regular

BOX = tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
"""The features with the sides of bounding boxes, each a list of floats with one entry for each box."""


class ImageFiles(Examples):
    """Images in files, one image per file."""

    def __init__(self, paths: Sequence[Path], labels: NDArray[np.int64]) -> None:
        self._paths = paths
        self._labels = labels

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def strata(self) -> NDArray[np.int64]:
        return self._labels

    def take(self, examples: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Return the encoded images x and the labels y. Raises UndecodableImageError if a file cannot be read."""
        images = np.empty(len(examples), object)
        for place, example in enumerate(examples):
            path = self._paths[example]
            try:
                with open_regular(path) as file:
                    images[place] = EncodedImage(file.read(), str(path))
            except OSError as error:
                raise UndecodableImageError(f"{path} cannot be read: {error.strerror}; restore it") from error
        return {"x": images, "y": self._labels[examples]}


class Records(Examples):
    """Examples in TFRecord files."""

    def __init__(self, shards: Sequence[ShardIndex], fields: Description, first_label: int) -> None:
        """fields: describes the features of x and y. first_label: the label of the first class."""
        self._files = shards
        self._fields = fields
        self._first_label = first_label
        self._ends = np.cumsum(self.shards)
        boxes = () if fields.shape is not None else BOX
        self._wanted = (fields.image, *boxes, *((fields.label,) if fields.targets else ()))

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def shards(self) -> NDArray[np.int64]:
        return np.array([len(shard) for shard in self._files], np.int64)

    @cached_property
    def _labels(self) -> NDArray[np.int64]:
        return np.concatenate([shard.labels for shard in self._files]) - self._first_label

    @property
    def strata(self) -> NDArray[np.int64]:
        """(N,): the label of each example; all 0 if y is floats."""
        return self._labels if not self._fields.targets else np.zeros(len(self), np.int64)

    def take(self, examples: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Return x and y of records, reading each file in the order of its records.

        Raises DataError, naming file, offset and record, if a record changed after indexing, lacks a feature or has
        numbers that are not finite.
        """
        fields = self._fields
        x = np.empty((len(examples), *(fields.shape or ())), object if fields.shape is None else fields.dtype)
        y = np.empty((len(examples), fields.targets), np.float32) if fields.targets else self._labels[examples]
        places = np.argsort(examples, kind="stable")
        files = np.searchsorted(self._ends, examples[places], side="right")
        for number in np.unique(files):
            shard, first = self._files[number], self._ends[number] - len(self._files[number])
            with shard.opened() as file:
                for place in places[files == number]:
                    record = int(examples[place] - first)
                    where = f"{shard.path}: record {record} at offset {shard.offsets[record]}"
                    features = _decoded(where, shard.read(file, record), self._wanted)
                    x[place] = self._input(where, features)
                    if fields.targets:
                        y[place] = _numbers(where, features, fields.label, (fields.targets,))
        return {"x": x, "y": y}

    def _input(self, where: str, features: Mapping[str, Value]) -> Any:
        fields = self._fields
        value = features.get(fields.image, [])
        if fields.shape is None:
            if not isinstance(value, list) or len(value) != 1:
                raise DataError(f"{where}: feature {fields.image} holds {len(value)} values; expected 1 encoded image")
            return EncodedImage(value[0], where, _boxes(features))
        if isinstance(value, np.ndarray):
            numbers = _numbers(where, features, fields.image, fields.shape)
            if fields.dtype == "uint8" and not np.array_equal(numbers, np.rint(numbers).clip(0, 255)):
                fault = f"feature {fields.image} has numbers other than the integers 0 to 255"
                raise DataError(f"{where}: {fault}, which data.dtype=uint8 expects; use data.dtype=float32")
            return numbers
        dtype = np.dtype(fields.dtype).newbyteorder("<")
        expected = int(np.prod(fields.shape)) * dtype.itemsize
        if len(value) != 1 or len(value[0]) != expected:
            found = f"{len(value[0])} bytes" if len(value) == 1 else f"{len(value)} values"
            advice = f"expected {expected} bytes, {dtype} of shape {fields.shape}, as data.shape and data.dtype state"
            raise DataError(f"{where}: feature {fields.image} holds {found}; {advice}")
        return _finite(where, fields.image, np.frombuffer(value[0], dtype).reshape(fields.shape))


def _decoded(where: str, data: bytes, wanted: tuple[str, ...]) -> Mapping[str, Value]:
    try:
        return decode(data, wanted)
    except ValueError as error:
        raise DataError(f"{where} is not a tf.train.Example: {error}; write the file again") from error


def _numbers(where: str, features: Mapping[str, Value], name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    value = features.get(name, [])
    if not isinstance(value, np.ndarray) or len(value) != np.prod(shape):
        raise DataError(f"{where}: feature {name} holds {len(value)} values; expected {np.prod(shape)} numbers")
    return _finite(where, name, value.reshape(shape))


def _finite(where: str, name: str, numbers: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of any dtype. Raises DataError if one of them is not finite."""
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise DataError(f"{where}: feature {name} is not finite; expected finite numbers; write the file again")
    return numbers


def _boxes(features: Mapping[str, Value]) -> NDArray[np.float32] | None:
    """Return bounding boxes (K, 4) if a record has all four lists of floats, of equal lengths."""
    sides = [features.get(name) for name in BOX]
    if not all(isinstance(side, np.ndarray) and side.dtype == np.float32 for side in sides):
        return None
    arrays = [np.asarray(side) for side in sides]
    return np.stack(arrays, axis=1) if len({len(side) for side in arrays}) == 1 else None


@dataclass(frozen=True)
class MappedSplit(Split):
    """Arrays that are mapped from a file into memory: the operating system reads and releases their pages.

    where: file and name of the array x, for messages.
    """

    where: str = ""

    @property
    def in_memory(self) -> bool:
        return False

    def take(self, examples: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Return copies of the examples. Raises DataError if one of them is not finite."""
        taken = super().take(examples)
        x = taken["x"]
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            wrong = examples[~np.isfinite(x).reshape(len(x), -1).all(axis=1)]
            raise DataError(f"{self.where} is not finite in example {wrong[0]}; expected finite numbers; correct it")
        return taken

    def only(self, examples: NDArray[np.int64]) -> Examples:  # type: ignore[override]
        """Return the examples with these indices; nothing is copied."""
        return Subset(self, examples)
