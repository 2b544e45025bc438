"""The user's data as arrays in an .npz file, or in a folder of .npy files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.data.dataset import Dataset, Facts, Split
from runner.data.npz import ArrayHeader, map_array, read_array, read_headers
from runner.data.own_files import NormalisedFiles
from runner.data.streamed import MappedSplit
from runner.errors import DataError, require_one_of
from runner.fields import Field

KEYS = ("x_train", "y_train", "x_test", "y_test")
"""Names of the arrays that a file must have."""

CLASS_NAMES = "class_names"
"""Name of the optional array of class names: text of shape (classes,)."""

LAYOUTS = ("nchw", "nhwc")
MOST_CLASSES = 1_000_000
_MOST_NAME_BYTES = 1 << 26
_PIXELS = ("uint8", "float32", "float64")
# An axis of at most this length can be the axis of channels: grey, grey and alpha, RGB, or RGBA.
_MOST_COLOURS = 4


@dataclass
class Arrays(NormalisedFiles):
    """The user's arrays in a file of ``numpy.savez`` or ``numpy.savez_compressed``, or in a folder of .npy files.

    x_train, x_test: images of shape (N, H, W), (N, C, H, W) or (N, H, W, C), or rows of numbers (N, F); dtype uint8 (0
    to 255), float32 or float64 (any finite numbers). y_train, y_test: (N,) integers, labels from 0; or floats (N,) or
    (N, K), numbers to predict. class_names: text of shape (classes,); without it, the names are the numbers from 0 to
    the largest label of both splits. Other arrays are not read.

    layout: the order of four axes, "nchw" or "nhwc"; null to detect it if only one of axes 1 and 3 is 4 or shorter.

    stream: false to load all arrays; true to map x from the file into memory, so that only the examples of a batch are
    read. The arrays must not be compressed. The checksums of the arrays are not verified.
    """

    name: str = "arrays"
    layout: str | None = None
    stream: bool = False

    ask = "name an .npz file, as in data=arrays data.path=my.npz"

    def __post_init__(self) -> None:
        require_one_of("data.layout", self.layout, LAYOUTS, optional=True)
        super().__post_init__()

    @property
    def streamed(self) -> bool:
        return self.stream

    @property
    def input_bytes(self) -> int:
        return self._headers()["x_train"].dtype.itemsize

    def facts_of_files(self) -> Facts:
        headers = self._headers()
        layout = self._layout(headers["x_train"].shape)
        train, test = (_example_shape(headers[key].shape, layout) for key in ("x_train", "x_test"))
        if train != test:
            raise self._wrong("x_test", f"holds examples {test}", f"examples {train}, as in x_train")
        if not self.stream:
            self.require_room(headers["x_train"].nbytes + headers["x_test"].nbytes, "x_train and x_test")
        counts = headers["x_train"].shape[0], headers["x_test"].shape[0]
        if headers["y_train"].dtype.kind == "f":
            return Facts({"x": Field(train), "y": Field(self._target_shape(headers))}, *counts)
        names = self._class_names(headers, [self._labels(key, headers) for key in ("y_train", "y_test")])
        return Facts.labelled(train, names, *counts)

    def scale(self) -> float:
        return 255.0 if self._headers()["x_train"].dtype == np.uint8 else 1.0

    def load(self) -> Dataset:
        self.facts()
        headers = self._headers()
        layout = self._layout(headers["x_train"].shape)

        def read(split: str) -> Split:
            arrays = {"x": self._inputs(f"x_{split}", layout), "y": self._targets(f"y_{split}", headers)}
            return MappedSplit(arrays, where=f"{self.path}: x_{split}") if self.stream else Split(arrays)

        train, test = read("train"), read("test")
        return Dataset(self.name, train, test, self.normalisation_of(train["x"]))

    def _headers(self) -> dict[str, ArrayHeader]:
        """Return the headers of all arrays. Raises DataError for a missing array or an invalid header of images."""
        headers = read_headers(Path(self.path))
        missing = [key for key in KEYS if key not in headers]
        if missing:
            expected = f"arrays {', '.join(KEYS)}, and optionally {CLASS_NAMES}; it has: {', '.join(headers) or 'none'}"
            raise DataError(f"{self.path} has no {' and no '.join(missing)}: expected {expected}")
        for key in ("x_train", "x_test"):
            shape, dtype = headers[key].shape, headers[key].dtype
            if dtype.name not in _PIXELS:
                raise self._wrong(key, f"is of dtype {dtype}", f"{' or '.join(_PIXELS)}; convert it with x.astype(...)")
            if len(shape) not in (2, 3, 4) or 0 in shape:
                raise self._wrong(key, f"is {shape}", "(N, F), (N, H, W), (N, C, H, W) or (N, H, W, C), no size 0")
        train, test = headers["x_train"].dtype, headers["x_test"].dtype
        if train.name != test.name:
            raise self._wrong("x_test", f"is of dtype {test}", f"{train}, as x_train")
        return headers

    def _layout(self, shape: tuple[int, ...]) -> str:
        if len(shape) < 4 or self.layout is not None:
            return self.layout or LAYOUTS[0]
        first, last = shape[1] <= _MOST_COLOURS, shape[3] <= _MOST_COLOURS
        if first == last:
            fault = f"is {shape}, in which axis 1 or axis 3 can be the channels"
            raise self._wrong("x_train", fault, "data.layout=nchw or data.layout=nhwc")
        return LAYOUTS[0] if first else LAYOUTS[1]

    def _inputs(self, key: str, layout: str) -> NDArray[Any]:
        """Return x as (N, C, H, W) or (N, F). Raises DataError for a value that is not finite, if x is loaded."""
        path = Path(self.path)
        inputs = map_array(path, key) if self.stream else self._finite(key, read_array(path, key))
        if inputs.ndim == 3:
            return inputs[:, None]
        if inputs.ndim == 4 and layout == "nhwc":
            inputs = inputs.transpose(0, 3, 1, 2)
        return inputs if self.stream else np.ascontiguousarray(inputs)

    def _finite(self, key: str, values: NDArray[Any]) -> NDArray[Any]:
        if values.dtype != np.uint8:
            # Check one example at a time, because a mask of all examples takes a quarter of their size in float32.
            for number, example in enumerate(values):
                if not np.isfinite(example).all():
                    raise self._wrong(key, f"is not finite in example {number}", "finite numbers; correct or remove it")
        return values

    def _targets(self, key: str, headers: dict[str, ArrayHeader]) -> NDArray[Any]:
        """Return labels (N,), or numbers (N, K)."""
        if headers[key].dtype.kind != "f":
            return self._labels(key, headers)
        return self._finite(key, read_array(Path(self.path), key)).reshape(-1, *self._target_shape(headers))

    def _target_shape(self, headers: dict[str, ArrayHeader]) -> tuple[int, ...]:
        """Return the shape (K,) of the numbers to predict. Raises DataError unless y has this shape in both splits."""
        shape = headers["y_train"].shape[1:] or (1,)
        for key in ("y_train", "y_test"):
            header, count = headers[key], headers[key.replace("y", "x", 1)].shape[0]
            possible = [(count, *shape), *([(count,)] if shape == (1,) else [])]
            if header.dtype.kind != "f" or len(shape) != 1 or not shape[0] or header.shape not in possible:
                expected = f"floats [{count}, K] in both splits, or [{count}], to predict numbers"
                raise self._wrong(key, f"is {header.dtype}{list(header.shape)}", expected)
        return shape

    def _labels(self, key: str, headers: dict[str, ArrayHeader]) -> NDArray[np.int64]:
        """Return the labels. Raises DataError unless each image has one label, an integer of 0 or more."""
        header, count = headers[key], headers[key.replace("y", "x", 1)].shape[0]
        if header.dtype.kind not in "iu" or header.shape != (count,):
            raise self._wrong(key, f"is {header.dtype}{list(header.shape)}", f"integers [{count}], one for each image")
        labels = read_array(Path(self.path), key)
        if labels.min() < 0 or labels.max() >= MOST_CLASSES:
            fault = f"holds labels from {labels.min()} to {labels.max()}"
            raise self._wrong(key, fault, f"labels from 0, below {MOST_CLASSES:,}")
        return labels.astype(np.int64)

    def _class_names(self, headers: dict[str, ArrayHeader], labels: list[NDArray[np.int64]]) -> tuple[str, ...]:
        largest = max(int(each.max()) for each in labels)
        if CLASS_NAMES not in headers:
            return tuple(str(label) for label in range(largest + 1))
        header = headers[CLASS_NAMES]
        fits = len(header.shape) == 1 and largest < header.shape[0] <= MOST_CLASSES
        if header.dtype.kind != "U" or not fits or header.nbytes > _MOST_NAME_BYTES:
            expected = f"text, the names of labels 0 to {largest} or more, at most 64 MiB, as np.array(['cat', 'dog'])"
            raise self._wrong(CLASS_NAMES, f"is {header.dtype}{list(header.shape)}", expected)
        return tuple(str(name) for name in read_array(Path(self.path), CLASS_NAMES))

    def _wrong(self, key: str, fault: str, expected: str) -> DataError:
        return DataError(f"{self.path}: {key} {fault}; expected {expected}")


def _example_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return (C, H, W) of one image, or (F,) of one row."""
    match shape:
        case (_, height, width):
            return 1, height, width
        case (_, height, width, channels) if layout == "nhwc":
            return channels, height, width
    return shape[1:]
