"""The base class of dataset settings, and limits on the number of examples."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from runner.bounds import Count, Rate
from runner.data.augmentation import Augment
from runner.data.dataset import Dataset, Facts, Normalisation, Split
from runner.errors import ConfigError


@dataclass
class DatasetSettings(ABC):
    """Settings of one dataset. Creation raises ConfigError for invalid values.

    cache_dir: folder of fetched datasets, None for the user's cache; ignored by datasets that need no download.
    train_limit, test_limit: largest number of examples to use from a split, spread evenly over it; None for all.
    val_fraction: fraction of every class of the train split that becomes the validation split, drawn with the run's
    seed; 0 for no validation split.
    """

    fits_images: ClassVar[bool] = False
    """Whether the examples are image files, which :func:`~runner.data.pictures.read_image` converts to one shape."""

    name: str = ""
    augment: Augment = field(default_factory=Augment)
    cache_dir: str | None = None
    train_limit: Count | None = None
    test_limit: Count | None = None
    val_fraction: Rate = 0.0

    def __post_init__(self) -> None:
        facts: object = self.facts()
        if not isinstance(facts, Facts):  # a plugin's dataset can return anything
            raise ConfigError(f"data.name={self.name}: facts returned {facts}; expected Facts")
        examples = min(facts.train_examples, self.train_limit or facts.train_examples)
        if self.val_fraction and examples < 2:
            raise ConfigError(
                f"data.val_fraction={self.val_fraction} of {examples} train example: expected 0, or 2 train examples "
                "or more, so that both splits have one"
            )
        self.augment.require_fitting(facts.shape, self.name)

    @abstractmethod
    def facts(self) -> Facts:
        """Return the facts of the whole dataset, without limits and validation split; must not read images."""

    def normalisation(self) -> Normalisation:
        """Return the normalisation of stored pixels. Raises DataError if it must read data and cannot."""
        return self.load().normalisation

    def require_present(self) -> None:  # noqa: B027 - does nothing by default
        """Raise DataError, with the command that fetches the dataset, if the dataset is missing from the cache.

        This quick check before a run reads no data. For a dataset that needs no download, it does nothing.
        """

    @abstractmethod
    def load(self) -> Dataset:
        """Read or generate the whole dataset, without limits. Raises DataError if it is missing or corrupt."""


def limited_facts(settings: DatasetSettings) -> Facts:
    """Return the facts of a dataset within its limits and with its validation split; reads no images."""
    facts = settings.facts()
    train, test = (
        count if limit is None else min(count, limit)
        for count, limit in ((facts.train_examples, settings.train_limit), (facts.test_examples, settings.test_limit))
    )
    return replace(facts, train_examples=train, test_examples=test).carved(settings.val_fraction)


def load_limited(settings: DatasetSettings) -> Dataset:
    """Read or generate a dataset within its limits. Raises DataError if it is missing or corrupt."""
    dataset = settings.load()
    _require_fields(settings, dataset)
    train, test = _limited(dataset.train, settings.train_limit), _limited(dataset.test, settings.test_limit)
    return replace(dataset, train=train, test=test)


def _limited(split: Split, limit: int | None) -> Split:
    if limit is None or limit >= len(split):
        return split
    # The chosen examples are spread over the split, so that a split sorted by class does not lose whole classes.
    chosen = np.arange(limit) * len(split) // limit
    return split.take(chosen)


def _require_fields(settings: DatasetSettings, dataset: Dataset) -> None:
    """Raise ConfigError, with the place in the code, unless the splits have the fields and sizes of the facts."""
    facts, code = settings.facts(), type(settings).load.__code__
    for split, arrays, count in (
        ("train", dataset.train.arrays, facts.train_examples),
        ("test", dataset.test.arrays, facts.test_examples),
    ):
        expected = {name: (count, *field.shape) for name, field in facts.fields.items()}
        found = {name: values.shape for name, values in arrays.items()}
        if found != expected:
            raise ConfigError(
                f"data.name={settings.name}: {code.co_filename}:{code.co_firstlineno}: load returned a {split} split "
                f"with arrays of shapes {found}; expected {expected}, as facts returned"
            )
