"""Laws of the stratified split."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.data.dataset import held_out, stratified_split, validation_split

CLASS_SIZES = st.lists(st.integers(2, 40), min_size=1, max_size=6)


@settings(deadline=None)
@given(CLASS_SIZES, st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_every_class_is_split_by_its_own_share(sizes: list[int], fraction: float, seed: int):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    kept, out = stratified_split(labels, fraction, seed, "x")
    assert sorted([*kept, *out]) == list(range(len(labels)))
    for label, size in enumerate(sizes):
        count = int((labels[out] == label).sum())
        assert count == held_out(size, fraction)
        assert 1 <= count < size
        assert abs(count - size * fraction) <= 1


def test_the_draw_depends_on_the_seed_only():
    labels = np.repeat(np.arange(10), 30)
    first, again, other = (stratified_split(labels, 0.2, seed, "x")[1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@settings(deadline=None)
@given(CLASS_SIZES, st.data(), st.integers(0, 2**31))
def test_a_validation_split_has_the_size_asked_for_and_the_shares_of_the_classes(
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


def test_the_validation_draw_depends_on_the_seed_and_differs_from_that_of_a_test_split():
    labels = np.repeat(np.arange(10), 30)
    first, again, other = (validation_split(labels, 60, seed, "x")[1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, stratified_split(labels, 0.2, 1, "x")[1])
