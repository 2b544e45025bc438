"""Activations against scipy, at ordinary and at extreme inputs."""

import numpy as np
import pytest
from scipy import special

from runner.kernels.contract import Array
from runner.kernels.reference.rows import log_softmax, relu, relu_gradient, sigmoid, softmax

ORDINARY = np.random.default_rng(0).standard_normal((4, 5)) * 3
EXTREME = np.array([[-1e4, 0.0, 1e4], [-800.0, -700.0, 700.0], [1e4, 1e4, 1e4]])


@pytest.mark.parametrize("x", [ORDINARY, EXTREME], ids=["ordinary", "extreme"])
def test_softmax(x: Array) -> None:
    np.testing.assert_allclose(softmax(x), special.softmax(x, axis=-1), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("x", [ORDINARY, EXTREME], ids=["ordinary", "extreme"])
def test_log_softmax(x: Array) -> None:
    np.testing.assert_allclose(log_softmax(x), special.log_softmax(x, axis=-1), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("x", [ORDINARY, EXTREME], ids=["ordinary", "extreme"])
def test_sigmoid(x: Array, dtype: type) -> None:
    expected = special.expit(x.astype(dtype))
    np.testing.assert_allclose(sigmoid(x.astype(dtype)), expected, rtol=1e-6, atol=1e-38)


def test_probabilities_add_up_to_one() -> None:
    np.testing.assert_allclose(softmax(EXTREME).sum(axis=-1), 1.0, rtol=1e-15)


def test_relu_keeps_nan() -> None:
    assert np.isnan(relu(np.array([np.nan, -1.0]))).tolist() == [True, False]


def test_no_gradient_leaks_through_a_closed_relu_not_even_one_that_is_not_finite() -> None:
    dy = np.array([np.nan, np.inf, -np.inf, -1.0, 2.0])
    assert relu_gradient(dy, np.array([0.0, -1.0, 0.0, 0.0, 3.0])).tobytes() == np.array([0, 0, 0, 0, 2.0]).tobytes()
