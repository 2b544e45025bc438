"""The common base of the settings of datasets, and datasets limited to fewer examples."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from runner.bounds import Count, Rate
from runner.data.augment import Augment
from runner.data.dataset import Dataset, Facts, Normalisation, Split
from runner.errors import ConfigError


@dataclass
class DatasetSettings(ABC):
    """Settings of one dataset. Creating it with impossible values raises ConfigError.

    cache_dir: folder of fetched datasets, None for the user's cache (see ``runner.data.cache``); ignored by datasets
    that are not fetched. train_limit, test_limit: most examples of a split that are used, spread evenly over it; None
    for all. val_fraction: fraction of every class of the train split that becomes the validation split, drawn by the
    run's seed; 0: no validation split.
    """

    fits_images: ClassVar[bool] = False
    """Whether examples are image files that :func:`~runner.data.pictures.read_image` converts to one shape."""

    name: str = ""
    augment: Augment = field(default_factory=Augment)
    cache_dir: str | None = None
    train_limit: Count | None = None
    test_limit: Count | None = None
    val_fraction: Rate = 0.0

    def __post_init__(self) -> None:
        facts: object = self.facts()
        if not isinstance(facts, Facts):  # the dataset of a plugin can return anything
            raise ConfigError(f"data.name={self.name}: facts returned {facts}; expected Facts")
        examples = min(facts.train_examples, self.train_limit or facts.train_examples)
        if self.val_fraction and examples < 2:
            raise ConfigError(
                f"data.val_fraction={self.val_fraction} of {examples} train example: expected 0, or 2 train examples "
                "or more, so that both splits have one"
            )
        smallest = min(facts.shape[1:])
        if self.augment.crop_padding >= smallest:
            raise ConfigError(
                f"data.augment.crop_padding is {self.augment.crop_padding}; for dataset {self.name!r} "
                f"it must be less than {smallest} pixels, or a crop could miss the image"
            )

    @abstractmethod
    def facts(self) -> Facts:
        """Return shape, classes and counts of all examples, without reading any data."""

    def normalisation(self) -> Normalisation:
        """Return the normalisation of stored pixels. Raises DataError if the data must be read and cannot."""
        return self.load().normalisation

    def require_present(self) -> None:  # noqa: B027 - does nothing by default
        """Raise DataError, with the command to fetch it, if the dataset must be fetched and was not.

        A quick check before a run starts; reads nothing. A dataset in a package or in memory is always present.
        """

    @abstractmethod
    def load(self) -> Dataset:
        """Read or make the dataset, with all examples. Raises DataError if it is missing or corrupt."""


def limited_facts(settings: DatasetSettings) -> Facts:
    """Return the facts of a dataset within its limits and with its validation split; nothing is read."""
    facts = settings.facts()
    limited = replace(
        facts,
        train_examples=_count(facts.train_examples, settings.train_limit),
        test_examples=_count(facts.test_examples, settings.test_limit),
    )
    return limited.carved(settings.val_fraction)


def load_limited(settings: DatasetSettings) -> Dataset:
    """Read or make a dataset within its limits. Raises DataError if it is missing or corrupt."""
    dataset = settings.load()
    return replace(
        dataset,
        train=_limited(dataset.train, settings.train_limit),
        test=_limited(dataset.test, settings.test_limit),
    )


def _count(examples: int, limit: int | None) -> int:
    return examples if limit is None else min(examples, limit)


def _limited(split: Split, limit: int | None) -> Split:
    count = _count(len(split), limit)
    if count == len(split):
        return split
    # Spread over the split: a split that is sorted by class keeps all classes.
    chosen = np.arange(count) * len(split) // count
    return Split(split.images[chosen], split.labels[chosen])
