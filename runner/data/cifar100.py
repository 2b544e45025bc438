"""CIFAR-100 (Krizhevsky 2009, section 3.1), in the user's files."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Positive, Real
from runner.data.dataset import Dataset, Facts, Split
from runner.data.own_files import NormalisedFiles
from runner.errors import DataError
from runner.system.files import open_regular

SHAPE, CLASSES, TRAIN_IMAGES, TEST_IMAGES = (3, 32, 32), 100, 50_000, 10_000
_LABELS = 2
"""The number of bytes before an image: the coarse and the fine label."""
_RECORD = _LABELS + int(np.prod(SHAPE))


@dataclass
class Cifar100(NormalisedFiles):
    """CIFAR-100 in its published binary version: PATH/train.bin and PATH/test.bin of ``cifar-100-binary``.

    60,000 colour photographs of 32x32 pixels in 100 fine classes. Without a path, runs can be planned and explained.
    """

    name: str = "cifar100"
    mean: list[Real] | None = field(default_factory=lambda: [0.5071, 0.4865, 0.4409])
    std: list[Positive] | None = field(default_factory=lambda: [0.2673, 0.2564, 0.2762])

    ask = "name the folder with train.bin and test.bin, as in data=cifar100 data.path=cifar-100-binary"

    def published_facts(self) -> Facts:
        return Facts.labelled(SHAPE, tuple(f"class {label}" for label in range(CLASSES)), TRAIN_IMAGES, TEST_IMAGES)

    def facts_of_files(self) -> Facts:
        """Return the published facts. The files are not read, because :meth:`load` checks them."""
        return self.published_facts()

    def load(self) -> Dataset:
        """Read both files. Raises DataError if one is missing, has another length or a label of 100 or more."""
        self.require_present()
        train, test = (self._split(*each) for each in (("train.bin", TRAIN_IMAGES), ("test.bin", TEST_IMAGES)))
        return Dataset(self.name, train, test, self.normalisation_of(train["x"]))

    def _split(self, filename: str, images: int) -> Split:
        path, expected = Path(self.path) / filename, images * _RECORD
        try:
            with open_regular(path) as file:
                stored = file.read(expected + 1)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}; {self.ask}") from error
        if len(stored) != expected:
            raise DataError(f"{path} does not have the expected {expected:,} bytes; {self.ask}")
        records: NDArray[np.uint8] = np.frombuffer(stored, np.uint8).reshape(images, _RECORD)
        labels = records[:, _LABELS - 1].astype(np.int64)
        if labels.max() >= CLASSES:
            raise DataError(f"{path}: label {labels.max()}, expected labels from 0 to {CLASSES - 1}; {self.ask}")
        return Split({"x": np.ascontiguousarray(records[:, _LABELS:]).reshape(images, *SHAPE), "y": labels})
