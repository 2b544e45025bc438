"""Fewer examples than there are: as many as asked for, of all classes, the same wherever they are counted."""

from __future__ import annotations

import numpy as np

from runner.data.digits import Digits
from runner.data.settings import limited_facts, load_limited
from runner.data.source import source_from_config
from runner.data.synthetic import Synthetic


def synthetic(**limits: int | None) -> Synthetic:
    """40 and 20 examples of four classes."""
    return Synthetic(shape=[1, 2, 2], classes=4, examples=40, test_examples=20, **limits)  # type: ignore[arg-type]


def test_a_dataset_without_limits_is_whole() -> None:
    settings = synthetic()
    assert limited_facts(settings) == settings.facts()
    assert len(load_limited(settings).train) == 40


def test_both_splits_are_limited_and_the_facts_are_those_of_what_is_loaded() -> None:
    settings = synthetic(train_limit=10, test_limit=7)
    dataset = load_limited(settings)
    assert (len(dataset.train), len(dataset.test)) == (10, 7)
    assert dataset.facts == limited_facts(settings)


def test_more_than_there_are_are_all() -> None:
    assert load_limited(synthetic(train_limit=41)).facts == synthetic().facts()


def test_examples_are_spread_over_the_split() -> None:
    whole, few = load_limited(synthetic()).train, load_limited(synthetic(train_limit=8)).train
    assert np.array_equal(few.images, whole.images[::5])
    assert np.array_equal(few.labels, whole.labels[::5])
    assert set(load_limited(Digits(train_limit=40)).train.labels) == set(range(10))


def test_batches_come_from_the_chosen_examples_alone() -> None:
    config = {"name": "synthetic", "shape": [1, 2, 2], "classes": 4, "examples": 40, "test_examples": 20}
    with source_from_config(config | {"train_limit": 3}, seed=0, batch_size=6, dtype="float32") as source:
        x = source.read("train", 0, 0, 6)["x"]
    assert len(np.unique(x.reshape(6, -1), axis=0)) == 3
