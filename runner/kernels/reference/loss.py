"""Cross-entropies from logits."""

from __future__ import annotations

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.reference.activation import log_softmax
from runner.kernels.reference.indexing import check_range, one_hot
from runner.kernels.registry import reference


@reference("softmax_cross_entropy")
def softmax_cross_entropy(logits: Array, labels: Array) -> tuple[Array, Array]:
    check_range("softmax_cross_entropy", labels, logits.shape[1])
    log_probabilities = log_softmax(logits)
    loss: Array = -log_probabilities[np.arange(len(labels)), labels]
    return loss, np.exp(log_probabilities)


@reference("softmax_cross_entropy_gradient")
def softmax_cross_entropy_gradient(probabilities: Array, labels: Array, dloss: Array) -> Array:
    classes = probabilities.shape[1]
    check_range("softmax_cross_entropy_gradient", labels, classes)
    truth: Array = one_hot(labels, depth=classes, dtype=probabilities.dtype.name)
    dlogits: Array = (probabilities - truth) * dloss[:, None]
    return dlogits


@reference("sigmoid_cross_entropy")
def sigmoid_cross_entropy(logits: Array, targets: Array) -> Array:
    loss: Array = np.maximum(logits, 0) - logits * targets + np.log1p(np.exp(-np.abs(logits)))
    return loss
