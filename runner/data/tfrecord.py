"""The user's data in TFRecord files, which are read when a batch needs them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from runner.bounds import Bounds, Count, CountOrZero
from runner.data.arrays import MOST_CLASSES
from runner.data.dataset import Dataset, Facts, Normalisation
from runner.data.encoded_files import EncodedFiles
from runner.data.preprocessing import PreprocessingSettings
from runner.data.published import cache_root
from runner.data.records.description import Description, read_description
from runner.data.records.index import ShardIndex, index_of
from runner.data.records.shards import shard_paths
from runner.data.streamed import Records
from runner.errors import ConfigError, DataError, require, require_one_of
from runner.fields import Field

_DTYPES = ("uint8", "float32", "float64")


@dataclass
class TFRecord(EncodedFiles):
    """Shards of ``tf.train.Example`` records below PATH, such as PATH/train-00000-of-00008.

    train, test: patterns of the files of each split: wildcards, or NAME@COUNT. first_label: the label of the first
    class, 1 in the records of ImageNet. Files compressed with GZIP or ZLIB are expanded into the cache.
    The other keys describe the records. If a key is null, the entry of dataset.json or the default in parentheses is
    used. image ("image/encoded"): feature with one encoded image, raw bytes or numbers. label ("image/class/label"):
    feature with one integer. classes (up to the largest label): number of classes. shape (encoded images): shape of x
    in raw bytes or numbers, such as [3,32,32]. dtype ("uint8"): dtype of x.
    """

    name: str = "tfrecord"
    train: str = "train-*"
    test: str = "test-*"
    image: str | None = None
    label: str | None = None
    first_label: CountOrZero = 0
    classes: Annotated[int, Bounds(1, MOST_CLASSES)] | None = None
    shape: list[Count] | None = None
    dtype: str | None = None

    ask = "name a folder of record files, as in data=tfrecord data.path=my_records"
    streamed = True

    def __post_init__(self) -> None:
        require_one_of("data.dtype", self.dtype, _DTYPES, optional=True)
        require(self.shape != [], "data.shape", self.shape, "one size or more, or null for encoded images")
        super().__post_init__()
        if self.path and not self.fits_images and self.preprocessing != PreprocessingSettings():
            expected = "fit without changes, because these records hold arrays, which are not preprocessed"
            raise ConfigError(f"data.preprocessing.name={self.preprocessing.name}: expected {expected}")

    @property
    def fits_images(self) -> bool:
        return self._described().shape is None

    def facts_of_files(self) -> Facts:
        """Return the facts from the index. The first call reads all files to build the index. Raises DataError."""
        train, test = self._indexed()
        counts = [sum(map(len, shards)) for shards in (train, test)]
        described = self._described()
        shape = (self.channels, self.size, self.size) if described.shape is None else described.shape
        if described.targets:
            return Facts({"x": Field(shape), "y": Field((described.targets,))}, counts[0], counts[1])
        names = described.class_names if self.classes is None else ()
        labels = [shard.labels for shards in (train, test) for shard in shards if len(shard)]
        least, most = min(map(np.min, labels)) - self.first_label, max(map(np.max, labels)) - self.first_label
        classes = self.classes or len(names) or int(most) + 1
        if least < 0 or most >= classes or classes > MOST_CLASSES:
            first = self.first_label
            expected = f"{first} to {first + classes - 1}, {classes} classes from data.first_label on"
            raise DataError(f"{self.path}: labels are {least + first} to {most + first}; expected {expected}")
        return Facts.labelled(shape, names or tuple(map(str, range(classes))), counts[0], counts[1])

    def scale(self) -> float:
        described = self._described()
        return 255.0 if described.shape is None or described.dtype == "uint8" else 1.0

    def load(self) -> Dataset:
        """Return splits that read records; only the index of the records is in memory.

        Raises DataError for invalid files.
        """
        described = self._described()
        train, test = (Records(shards, described, self.first_label) for shards in self._indexed())
        preprocessing = self.image_preprocessing() if described.shape is None else None
        normalisation = self.normalisation_of_examples(train, preprocessing)
        return Dataset(described.name, train, test, normalisation, preprocessing, self.skip_errors)

    def known_normalisation(self) -> Normalisation | None:
        """Return the normalisation of the settings, the preprocessing or dataset.json; None if all are unset."""
        described = self._described()
        stored = described.normalisation
        if described.shape is None and stored is not None and len(stored.mean) != self.channels:
            stored = None  # the images are decoded to grey or RGB, unlike those of dataset.json
        return super().known_normalisation() or stored

    def _described(self) -> Description:
        """Return dataset.json or the defaults, with the keys that these settings have in place of theirs."""
        found = read_description(Path(self.path)) or Description(self.name)
        image, label, dtype = (getattr(self, key) or getattr(found, key) for key in ("image", "label", "dtype"))
        shape = found.shape if self.shape is None else tuple(self.shape)
        return replace(found, image=image, label=label, shape=shape, dtype=dtype)

    def _indexed(self) -> tuple[Sequence[ShardIndex], Sequence[ShardIndex]]:
        """Return the indices of both splits. Raises DataError if more records are faulty than are tolerated."""
        described, cache = self._described(), cache_root(self.cache_dir) / "record_index"
        label = "" if described.targets else described.label
        train, test = (
            [index_of(path, label, cache) for path in shard_paths(Path(self.path), pattern)]
            for pattern in (self.train, self.test)
        )
        faults = [f"{shard.path}: {fault}" for shard in (*train, *test) for fault in shard.faults]
        if len(faults) > self.skip_errors:
            fault = f"{faults[0]}; {len(faults)} faults in all, more than data.skip_errors={self.skip_errors}"
            advice = "write the file again, or raise data.skip_errors to leave faulty records out"
            raise DataError(f"{fault}: {advice}")
        for split, shards in ((self.train, train), (self.test, test)):
            if not sum(map(len, shards)):
                raise DataError(f"{self.path}/{split} holds no valid record; expected 1 or more")
        return train, test
