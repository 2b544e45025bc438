"""The order of additions depends on shapes only, not on the layout in memory."""

from collections.abc import Callable

import numpy as np
import pytest

from runner.kernels.contract import Array
from runner.kernels.reference.arithmetic import reduce_mean, reduce_sum
from runner.kernels.reference.normalization import batch_norm, batch_norm_gradient
from runner.kernels.reference.structural import add_n

X = np.random.default_rng(0).standard_normal((37, 29, 41), dtype=np.float32)
TURNED = np.asfortranarray(X)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("reduction", [reduce_sum, reduce_mean])
def test_reductions_give_the_same_bits_for_every_layout(reduction: Callable[..., Array], axes: tuple[int, ...]) -> None:
    plain, turned = (reduction(x, axes=axes, keepdims=False) for x in (X, TURNED))
    np.testing.assert_array_equal(plain, turned)


def test_numpys_own_sum_depends_on_the_layout() -> None:
    """The reason why the kernels copy to C order first."""
    assert any((X.sum(axis=axis) != TURNED.sum(axis=axis)).any() for axis in range(3))


def test_batch_normalisation_gives_the_same_bits_for_every_layout() -> None:
    x, dy = X.reshape(37, 29, 1, 41), X[::-1].reshape(37, 29, 1, 41)
    one = np.ones(29, np.float32)
    for plain, turned in zip(
        [*batch_norm(x, one, one, epsilon=0.1), *batch_norm_gradient(x, one, one, one, dy, epsilon=0.1)],
        [
            *batch_norm(np.asfortranarray(x), one, one, epsilon=0.1),
            *batch_norm_gradient(np.asfortranarray(x), one, one, one, np.asfortranarray(dy), epsilon=0.1),
        ],
        strict=True,
    ):
        np.testing.assert_array_equal(plain, turned)


def test_a_sum_of_many_runs_from_left_to_right() -> None:
    # In float32 1e8 + 1 is 1e8.
    terms = [np.full(1, value, np.float32) for value in (1e8, 1.0, -1e8, 1.0)]
    assert add_n(*terms).tolist() == [1.0]
    assert add_n(*reversed(terms)).tolist() == [0.0]


def test_integers_are_summed_in_their_own_dtype() -> None:
    assert reduce_sum(np.ones(3, np.int32), axes=(0,), keepdims=False).dtype == np.int32
