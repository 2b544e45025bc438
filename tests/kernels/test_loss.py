"""Cross-entropies against scipy, at ordinary and at extreme logits."""

import numpy as np
import pytest
from scipy import special

from runner.kernels.reference.rows import sigmoid_cross_entropy, softmax_cross_entropy


def test_softmax_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((6, 4)), rng.integers(0, 4, 6)
    loss, probabilities = softmax_cross_entropy(logits, labels)
    truth = np.eye(4)[labels]
    np.testing.assert_allclose(probabilities, special.softmax(logits, axis=1), rtol=1e-12)
    np.testing.assert_allclose(loss, -special.xlogy(truth, probabilities).sum(axis=1), rtol=1e-12)


def test_a_hopeless_prediction_costs_a_finite_loss() -> None:
    loss, probabilities = softmax_cross_entropy(np.array([[0.0, 2000.0]]), np.array([0]))
    assert loss.tolist() == [2000.0]
    assert probabilities.tolist() == [[0.0, 1.0]]


def test_sigmoid_cross_entropy() -> None:
    rng = np.random.default_rng(1)
    logits, targets = rng.standard_normal((5, 3)), rng.random((5, 3))
    p = special.expit(logits)
    expected = -special.xlogy(targets, p) - special.xlog1py(1 - targets, -p)
    np.testing.assert_allclose(sigmoid_cross_entropy(logits, targets), expected, rtol=1e-12)


def test_sigmoid_cross_entropy_of_large_logits() -> None:
    loss = sigmoid_cross_entropy(np.array([1000.0, -1000.0, 1000.0]), np.array([0.0, 1.0, 1.0]))
    assert loss.tolist() == [1000.0, 1000.0, 0.0]


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_out_of_range_is_named(label: int) -> None:
    message = rf"op 'softmax_cross_entropy': index {label} at \[1\] is outside 0..2"
    with pytest.raises(IndexError, match=message):
        softmax_cross_entropy(np.zeros((2, 3)), np.array([0, label]))
