"""Fewer examples than a dataset has, as its settings ask for: to try something out, or to learn a few by heart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from runner.data.dataset import Dataset, Facts, Split
from runner.data.settings import DatasetSettings


def facts_of(settings: DatasetSettings) -> Facts:
    """The facts of a dataset within its limits and with the validation split that is asked for; nothing is read."""
    facts = settings.facts()
    limited = replace(
        facts,
        train_examples=_count(facts.train_examples, settings.train_limit),
        test_examples=_count(facts.test_examples, settings.test_limit),
    )
    return limited.carved(settings.val_fraction)


def load(settings: DatasetSettings) -> Dataset:
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
    # Spread over the split: one that is sorted by class keeps all of its classes.
    chosen = np.arange(count) * len(split) // count
    return Split(split.images[chosen], split.labels[chosen])
