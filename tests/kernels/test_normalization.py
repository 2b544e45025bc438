"""Sums over neighbouring channels; the order of additions depends on shapes only, not on the layout in memory.

``tests/nn/test_layers.py`` compares normalization with its formulas.
"""

from collections.abc import Callable

import numpy as np
import pytest

from runner.kernels.contract import Array
from runner.kernels.reference import normalization
from runner.kernels.reference.arithmetic import reduce_mean, reduce_sum
from runner.kernels.reference.structural import add_n


def test_the_variance_of_large_numbers_is_accurate() -> None:
    x = np.array([[1e4], [1e4 + 1], [1e4 + 2]], np.float32)
    _, _, variance = normalization.batch_norm(x, np.ones(1, np.float32), np.zeros(1, np.float32), epsilon=0.0)
    assert variance[0] == pytest.approx(2 / 3, rel=1e-5)


@pytest.mark.parametrize("size", [1, 3, 5, 9])
@pytest.mark.parametrize("channels", [1, 2, 7])
def test_each_channel_sums_its_neighbours(size: int, channels: int) -> None:
    x = np.random.default_rng(size).standard_normal((2, channels, 3))
    y = normalization.channel_window_sum(x, size=size)
    for c in range(channels):
        neighbours = [x[:, k] for k in range(channels) if abs(k - c) <= size // 2]
        np.testing.assert_allclose(y[:, c], np.sum(neighbours, axis=0), rtol=1e-12, atol=1e-13)


X = np.random.default_rng(0).standard_normal((37, 29, 41), dtype=np.float32)
TURNED = np.asfortranarray(X)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("reduction", [reduce_sum, reduce_mean])
def test_reductions_give_the_same_bits_for_every_layout(reduction: Callable[..., Array], axes: tuple[int, ...]) -> None:
    plain, turned = (reduction(x, axes=axes, keepdims=False) for x in (X, TURNED))
    np.testing.assert_array_equal(plain, turned)


def test_batch_normalisation_gives_the_same_bits_for_every_layout() -> None:
    x, dy = X.reshape(37, 29, 1, 41), X[::-1].reshape(37, 29, 1, 41)
    one = np.ones(29, np.float32)

    def results(x: Array, dy: Array) -> list[Array]:
        gradients = normalization.batch_norm_gradient(x, one, one, one, dy, epsilon=0.1)
        return [*normalization.batch_norm(x, one, one, epsilon=0.1), *gradients]

    for plain, turned in zip(results(x, dy), results(np.asfortranarray(x), np.asfortranarray(dy)), strict=True):
        np.testing.assert_array_equal(plain, turned)


def test_many_terms_are_added_from_left_to_right() -> None:
    # In float32, 1e8 + 1 is 1e8.
    terms = [np.full(1, value, np.float32) for value in (1e8, 1.0, -1e8, 1.0)]
    assert add_n(*terms).tolist() == [1.0]
    assert add_n(*reversed(terms)).tolist() == [0.0]
