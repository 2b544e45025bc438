"""Laws of the stratified split."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.data.stratify import held_out, stratified_split

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
