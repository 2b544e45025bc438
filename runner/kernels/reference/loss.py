"""Activation functions, and cross-entropies of logits."""

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.reference.indexing import check_range, one_hot
from runner.kernels.registry import reference


@reference("relu")
def relu(x: Array) -> Array:
    return np.maximum(x, 0)


@reference("relu_gradient")
def relu_gradient(dy: Array, y: Array) -> Array:
    dx: Array = np.where(y > 0, dy, np.zeros((), dy.dtype))
    return dx


@reference("sigmoid")
def sigmoid(x: Array) -> Array:
    decay = np.exp(-np.abs(x))  # never overflows, unlike exp(-x)
    y: Array = np.where(x >= 0, 1, decay) / (1 + decay)
    return y


reference("tanh")(np.tanh)


@reference("softmax")
def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    y: Array = powers / powers.sum(axis=-1, keepdims=True)
    return y


@reference("log_softmax")
def log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=-1, keepdims=True)
    y: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return y


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
