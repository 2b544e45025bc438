"""Facts of datasets, their limits, and splits that keep the share of every class."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.data.dataset import Normalisation, held_out, stratified_split, validation_split
from runner.data.digits import Digits
from runner.data.settings import limited_facts, load_limited
from runner.data.source import source_from_config
from runner.data.synthetic import Synthetic


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
def test_normalisation_follows_its_formula_per_channel(dtype: str, tolerance: float):
    images = np.random.default_rng(0).integers(0, 256, (4, 2, 3, 5), np.uint8)
    inputs = Normalisation(255.0, (0.25, 0.5), (0.2, 0.4)).apply(images, np.dtype(dtype))
    assert inputs.dtype == dtype
    for channel, (mean, std) in enumerate([(0.25, 0.2), (0.5, 0.4)]):
        expected = (images[:, channel].astype(np.float64) / 255.0 - mean) / std
        np.testing.assert_allclose(inputs[:, channel], expected, rtol=tolerance, atol=tolerance)


def synthetic(**limits: int | None) -> Synthetic:
    """40 and 20 examples of four classes."""
    return Synthetic(shape=[1, 2, 2], classes=4, examples=40, test_examples=20, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "train", "test"),
    [({}, 40, 20), ({"train_limit": 10, "test_limit": 7}, 10, 7), ({"train_limit": 41, "test_limit": 21}, 40, 20)],
)
def test_both_splits_and_the_facts_are_limited(limits: dict[str, int], train: int, test: int) -> None:
    settings = synthetic(**limits)
    dataset = load_limited(settings)
    assert (len(dataset.train), len(dataset.test)) == (train, test)
    assert dataset.facts == limited_facts(settings)


def test_examples_are_spread_over_the_split() -> None:
    whole, few = load_limited(synthetic()).train, load_limited(synthetic(train_limit=8)).train
    assert np.array_equal(few.images, whole.images[::5])
    assert np.array_equal(few.labels, whole.labels[::5])
    assert set(load_limited(Digits(train_limit=40)).train.labels) == set(range(10))


def test_batches_contain_only_the_limited_examples() -> None:
    config = {"name": "synthetic", "shape": [1, 2, 2], "classes": 4, "examples": 40, "test_examples": 20}
    with source_from_config(config | {"train_limit": 3}, seed=0, batch_size=6, dtype="float32") as source:
        x = source.read("train", 0, 0, 6)["x"]
    assert len(np.unique(x.reshape(6, -1), axis=0)) == 3


CLASS_SIZES = st.lists(st.integers(2, 40), min_size=1, max_size=6)


@settings(deadline=None)
@given(CLASS_SIZES, st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_every_class_is_split_separately(sizes: list[int], fraction: float, seed: int):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    kept, out = stratified_split(labels, fraction, seed, "x")
    assert sorted([*kept, *out]) == list(range(len(labels)))
    for label, size in enumerate(sizes):
        count = int((labels[out] == label).sum())
        assert count == held_out(size, fraction)
        assert 1 <= count < size
        assert abs(count - size * fraction) <= 1


@settings(deadline=None)
@given(CLASS_SIZES, st.data(), st.integers(0, 2**31))
def test_a_validation_split_has_the_requested_size_and_the_shares_of_the_classes(
    sizes: list[int], data: st.DataObject, seed: int
):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    examples = data.draw(st.integers(1, len(labels) - len(sizes)))
    kept, out = validation_split(labels, examples, seed, "x")
    assert sorted([*kept, *out]) == list(range(len(labels)))
    assert len(out) == examples
    counts = np.bincount(labels[out], minlength=len(sizes))
    assert (counts < sizes).all(), "no class is emptied where that can be avoided"
    shares = np.array(sizes) * examples / len(labels)
    avoidable = np.array(sizes) - np.floor(shares) > 1
    assert (np.abs(counts - shares) <= 1)[avoidable].all()


def test_the_largest_remainders_get_one_more():
    labels = np.repeat([0, 1, 2, 3], [10, 14, 9, 7])
    out = validation_split(labels, 10, 0, "x")[1]
    # Shares: 2.5, 3.5, 2.25, 1.75; lots decide between the first two.
    assert np.bincount(labels[out]).tolist() in ([3, 3, 2, 2], [2, 4, 2, 2])


def test_where_classes_have_one_example_each_lots_say_which_are_emptied():
    splits = [validation_split(np.arange(10), 3, seed, "x") for seed in range(5)]
    assert {(len(kept), len(out)) for kept, out in splits} == {(7, 3)}
    assert len({tuple(out) for _, out in splits}) > 1


def test_the_draws_depend_on_the_seed_and_differ_from_each_other():
    labels = np.repeat(np.arange(10), 30)
    ways = ((stratified_split, 0.2), (validation_split, 60))
    draws = [[split(labels, size, seed, "x")[1] for split, size in ways] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert len({each.tobytes() for pair in draws for each in pair}) == 4
