"""The 8x8 handwritten digits shipped with scikit-learn (part of UCI optdigits): 1,797 images, 10 classes."""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Bounds, Seed
from runner.data.dataset import Dataset, Facts, Normalisation, Split, held_out, stratified_split
from runner.data.settings import DatasetSettings
from runner.errors import DataError

_SHAPE = (1, 8, 8)
_PER_CLASS = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
_CLASS_NAMES = tuple("0123456789")
# The checksum is of the decompressed table, because the compression of the file may differ.
_TABLE_SHA256 = "68aea062d35a127749050fa0e52dca09d6569ac08092c925610e0954e172dde2"
# Each pixel is the number of black pixels, 0 to 16, in a 4x4 block of the original bitmap.
_NORMALISATION = Normalisation(scale=16.0, mean=(0.0,), std=(1.0,))


@dataclass
class Digits(DatasetSettings):
    """1,797 handwritten digits of 8x8 pixels, shipped with scikit-learn.

    test_fraction: fraction of every class that becomes the test split (scikit-learn has none). split_seed: seed of
    this split, independent of the run's seed.
    """

    name: str = "digits"
    test_fraction: Annotated[float, Bounds(0, 1, above=True, below=True)] = 0.2
    split_seed: Seed = 0

    def facts(self) -> Facts:
        test = sum(held_out(examples, self.test_fraction) for examples in _PER_CLASS)
        return Facts.labelled(_SHAPE, _CLASS_NAMES, sum(_PER_CLASS) - test, test)

    def normalisation(self) -> Normalisation:
        return _NORMALISATION

    def load(self) -> Dataset:
        """Read and split scikit-learn's file. Raises DataError if the file is missing or has other content."""
        table = _read_table(_digits_file())
        images, labels = table[:, :-1].reshape(-1, *_SHAPE), table[:, -1].astype(np.int64)
        train, test = (
            Split({"x": images[part], "y": labels[part]})
            for part in stratified_split(labels, self.test_fraction, self.split_seed, self.name)
        )
        return Dataset(self.name, train, test, _NORMALISATION)


def _digits_file() -> Path:
    # Only the file is needed; importing scikit-learn takes seconds.
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        advice = "install it: pip install scikit-learn"
        raise DataError(f"dataset 'digits' is read from scikit-learn, which is not installed; {advice}")
    return Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")


def _read_table(path: Path) -> NDArray[np.uint8]:
    """Return the (1797, 65) table of the compressed CSV file: 64 pixels and the label of each image."""
    try:
        with gzip.open(path) as stream:
            text = stream.read(1 << 20).decode("ascii")
        table = np.loadtxt(text.splitlines(), delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"cannot read dataset 'digits' from {path}: {error}; reinstall scikit-learn") from error
    found = hashlib.sha256(table.tobytes()).hexdigest()
    if found != _TABLE_SHA256:
        fault = f"SHA-256 of its table is {found}, expected {_TABLE_SHA256}; reinstall scikit-learn"
        raise DataError(f"{path} is not the table of digits of scikit-learn: {fault}")
    return table
