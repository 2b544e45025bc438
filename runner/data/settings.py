"""The base class of dataset settings, and limits on the number of examples."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from runner.bounds import Count, Rate, SmallCount
from runner.data.augmentation import Augment
from runner.data.dataset import Dataset, Examples, Facts, Normalisation, Split, held_out
from runner.data.order import Shuffle
from runner.errors import ConfigError
from runner.system.schema import LenientRecord, Violation

NOT_DECISIVE = ("cache_dir", "max_bytes", "threads", "prefetch")
"""Keys of datasets that do not affect the values of examples."""


@dataclass
class DatasetSettings(ABC):
    """Settings of one dataset. Creation raises ConfigError for invalid values.

    cache_dir: folder of fetched datasets and of indices of records, made absolute; None for the user's cache.
    train_limit, test_limit: largest number of examples to use from a split; None for all. The examples used are spread
    evenly over the split. If examples continue each other, the first examples are used.
    val_fraction: fraction of every class of the train split that becomes the validation split, drawn with the run's
    seed; 0 for no validation split. If examples continue each other, the last part of the train split is used.
    shuffle: the order of the examples of an epoch. threads: number of threads that prepare batches in each process.
    prefetch: least number of batches that each process prepares in advance.
    """

    name: str = ""
    augment: Augment = field(default_factory=Augment)
    cache_dir: str | None = None
    train_limit: Count | None = None
    test_limit: Count | None = None
    val_fraction: Rate = 0.0
    shuffle: Shuffle = field(default_factory=Shuffle)
    threads: SmallCount = 1
    prefetch: SmallCount = 1

    def __post_init__(self) -> None:
        if self.cache_dir is not None:
            self.cache_dir = absolute(self.cache_dir)
        facts: object = self.facts()
        if not isinstance(facts, Facts):  # a plugin's dataset can return anything
            raise ConfigError(f"data.name={self.name}: facts returned {facts}; expected Facts")
        examples = min(facts.train_examples, self.train_limit or facts.train_examples)
        if self.val_fraction and examples < 2:
            expected = "0, or 2 train examples or more, so that both splits have one"
            raise ConfigError(f"data.val_fraction={self.val_fraction} of {examples} train example: expected {expected}")
        self.augment.require_fitting(facts.shape, self.name)

    @abstractmethod
    def facts(self) -> Facts:
        """Return the facts of the whole dataset, without limits and validation split; must not read images."""

    @property
    def fits_images(self) -> bool:
        """Whether the examples are image files that are converted to one shape."""
        return False

    def normalisation(self) -> Normalisation:
        """Return the normalisation of stored pixels. Raises DataError if required data cannot be read."""
        return self.load().normalisation

    def require_present(self) -> None:  # noqa: B027 - does nothing by default
        """Raise DataError, with the command that fetches the dataset, if it is not in the cache; read no data."""

    @abstractmethod
    def load(self) -> Dataset:
        """Return the whole dataset, without limits. Raises DataError if it is missing or corrupt."""

    @property
    def streamed(self) -> bool:
        """Whether examples are read when a batch needs them; if not, every process holds all examples in memory."""
        return False

    @property
    def input_bytes(self) -> int:
        """The bytes of an element of x as stored."""
        return 1


def absolute(path: str) -> str:
    """Return an absolute path, so that workers and a resumed run find the files from any folder."""
    return str(Path(path).expanduser().absolute())


DATASETS: dict[str, type[DatasetSettings]] = {}
"""Datasets by their names in the configuration; :mod:`runner.data` and plugins add theirs."""


def settings_from_config(config: Mapping[str, object]) -> DatasetSettings:
    """Return the settings that ``config`` ({"name": "digits", ...}) describes; keys other than "name" are optional.

    Raises ConfigError for an unknown name, an unknown key, or a value of wrong type or out of range.
    """
    name = config.get("name")
    if not isinstance(name, str) or name not in DATASETS:
        raise ConfigError(f"unknown dataset: data.name is {name!r}; expected one of {', '.join(DATASETS)}")
    try:
        return LenientRecord(DATASETS[name], complete=False).read(dict(config), "data")
    except Violation as violation:
        raise ConfigError(str(violation)) from violation


def require_mean_and_std(mean: Sequence[float] | None, std: Sequence[float] | None, channels: int | None) -> None:
    """Raise ConfigError unless both are None or both have one number per channel. channels: None if not known."""
    counts = {None if each is None else len(each) for each in (mean, std)}
    if len(counts) > 1 or (channels is not None and counts not in ({None}, {channels})):
        shown = ["null" if each is None else each for each in (mean, std)]
        numbers = "a number" if channels is None else f"{channels} number(s) each, one"
        expected = f"{numbers} for each channel, or null for both"
        raise ConfigError(f"data.mean={shown[0]} and data.std={shown[1]}: expected {expected}")


def limited_facts(settings: DatasetSettings) -> Facts:
    """Return the facts of a dataset within its limits and with its validation split; reads no images."""
    facts = settings.facts()
    train, test = (
        count if limit is None else min(count, limit)
        for count, limit in ((facts.train_examples, settings.train_limit), (facts.test_examples, settings.test_limit))
    )
    val = held_out(train, settings.val_fraction) if settings.val_fraction else 0
    return replace(facts, train_examples=train - val, test_examples=test, val_examples=val)


def load_limited(settings: DatasetSettings) -> Dataset:
    """Return a dataset within its limits. Raises DataError if it is missing or corrupt, ConfigError for wrong facts."""
    dataset = settings.load()
    _require_fields(settings, dataset)
    train, test = _limited(dataset.train, settings.train_limit), _limited(dataset.test, settings.test_limit)
    return replace(dataset, train=train, test=test)


def _limited(split: Examples, limit: int | None) -> Examples:
    if limit is None or limit >= len(split):
        return split
    # The kept examples are spread over the split, which can be sorted by class, unless examples continue each other.
    return split.only(np.arange(limit) if split.is_sequence else np.arange(limit) * len(split) // limit)


def _require_fields(settings: DatasetSettings, dataset: Dataset) -> None:
    """Raise ConfigError, with the place in the code, unless the splits have the fields and sizes of the facts."""
    facts, code = settings.facts(), type(settings).load.__code__
    for split in ("train", "test"):
        examples, count = getattr(dataset, split), getattr(facts, f"{split}_examples")
        if not isinstance(examples, Split):
            continue  # the arrays of a batch are not known before it is read
        expected = {name: (count, *field.shape) for name, field in facts.fields.items()}
        found = {name: values.shape for name, values in examples.arrays.items()}
        if found != expected:
            where = f"data.name={settings.name}: {code.co_filename}:{code.co_firstlineno}"
            fault = f"load returned a {split} split with arrays of shapes {found}"
            raise ConfigError(f"{where}: {fault}; expected {expected}, as facts returned")
