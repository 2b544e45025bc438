"""Batch normalization and local response normalization against loops."""

import numpy as np
import pytest

from runner.kernels.reference.normalization import batch_norm, channel_window_sum, local_response_normalization


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 2, 5)])
def test_each_channel_is_normalised_by_its_own_statistics(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, gamma, beta = rng.standard_normal(shape) * 3 + 5, rng.standard_normal(3), rng.standard_normal(3)
    y, mean, variance = batch_norm(x, gamma, beta, epsilon=1e-3)
    for c in range(3):
        values = x[:, c]
        assert mean[c] == pytest.approx(np.mean(values), rel=1e-12)
        assert variance[c] == pytest.approx(np.mean((values - np.mean(values)) ** 2), rel=1e-12)
        expected = gamma[c] * (values - np.mean(values)) / np.sqrt(np.var(values) + 1e-3) + beta[c]
        np.testing.assert_allclose(y[:, c], expected, rtol=1e-11, atol=1e-12)


def test_the_variance_of_large_numbers_is_not_lost() -> None:
    x = np.array([[1e4], [1e4 + 1], [1e4 + 2]], np.float32)
    _, _, variance = batch_norm(x, np.ones(1, np.float32), np.zeros(1, np.float32), epsilon=0.0)
    assert variance[0] == pytest.approx(2 / 3, rel=1e-5)


@pytest.mark.parametrize("size", [1, 3, 5, 9])
@pytest.mark.parametrize("channels", [1, 2, 7])
def test_each_channel_sums_its_neighbours(size: int, channels: int) -> None:
    x = np.random.default_rng(size).standard_normal((2, channels, 3))
    y = channel_window_sum(x, size=size)
    for c in range(channels):
        neighbours = [x[:, k] for k in range(channels) if abs(k - c) <= size // 2]
        np.testing.assert_allclose(y[:, c], np.sum(neighbours, axis=0), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("divide_by_size", [False, True])
def test_local_response_by_loops(divide_by_size: bool) -> None:
    x = np.random.default_rng(3).standard_normal((2, 7, 2, 2))
    y = local_response_normalization(x, size=5, alpha=0.3, beta=0.75, k=2.0, divide_by_size=divide_by_size)
    weight = 0.3 / 5 if divide_by_size else 0.3
    for n, c, r, q in np.ndindex(*x.shape):
        energy = sum(x[n, k, r, q] ** 2 for k in range(max(0, c - 2), min(7, c + 3)))
        assert y[n, c, r, q] == pytest.approx(x[n, c, r, q] / (2.0 + weight * energy) ** 0.75, rel=1e-12)


def test_dividing_by_size_is_a_smaller_alpha() -> None:
    x = np.random.default_rng(4).standard_normal((2, 7))
    divided = local_response_normalization(x, size=5, alpha=1e-1, beta=0.75, k=1.0, divide_by_size=True)
    plain = local_response_normalization(x, size=5, alpha=2e-2, beta=0.75, k=1.0, divide_by_size=False)
    np.testing.assert_allclose(divided, plain, rtol=1e-14)
