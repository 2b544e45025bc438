"""Gather and scatter of rows, one-hot encoding, activation functions, softmax, and cross-entropies of logits."""

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.registry import reference


def check_range(op: str, indices: Array, count: int) -> None:
    """Raise IndexError if an index is outside 0..count-1; the message states the first such index and its position."""
    error = outside_range(op, indices, count)
    if error is not None:
        raise error


def outside_range(op: str, indices: Array, count: int) -> IndexError | None:
    """Return the error that :func:`check_range` raises, or None if all indices are in range."""
    wrong = (indices < 0) | (indices >= count)
    if not wrong.any():
        return None
    place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
    return IndexError(f"op {op!r}: index {indices[place]} at {list(place)} is outside 0..{count - 1}")


@reference("gather")
def gather(params: Array, indices: Array) -> Array:
    check_range("gather", indices, len(params))
    return params[indices]


@reference("scatter_add")
def scatter_add(indices: Array, updates: Array, *, rows: int) -> Array:
    check_range("scatter_add", indices, rows)
    total = np.zeros((rows, *updates.shape[indices.ndim :]), updates.dtype)
    np.add.at(total, indices, updates)
    return total


@reference("add_equal_rows")
def add_equal_rows(indices: Array, updates: Array) -> tuple[Array, Array]:
    _, first, place = np.unique(indices, return_index=True, return_inverse=True)
    totals = np.zeros((len(first), *updates.shape[1:]), updates.dtype)
    np.add.at(totals, place, updates)
    is_first = np.zeros(len(indices), updates.dtype)
    is_first[first] = 1
    return totals[place], is_first


@reference("put_rows", updates=True)
def put_rows(table: Array, indices: Array, rows: Array) -> None:
    check_range("put_rows", indices, len(table))
    table[indices] = rows


@reference("one_hot")
def one_hot(indices: Array, *, depth: int, dtype: str) -> Array:
    check_range("one_hot", indices, depth)
    return (indices[..., None] == np.arange(depth)).astype(dtype)


@reference("sigmoid")
def sigmoid(x: Array) -> Array:
    decay = np.exp(-np.abs(x))  # never overflows, unlike exp(-x)
    return np.where(x >= 0, 1, decay) / (1 + decay)


@reference("softmax")
def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@reference("log_softmax")
def log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@reference("softmax_cross_entropy")
def softmax_cross_entropy(logits: Array, labels: Array) -> tuple[Array, Array]:
    check_range("softmax_cross_entropy", labels, logits.shape[1])
    log_probabilities = log_softmax(logits)
    loss = -log_probabilities[np.arange(len(labels)), labels]
    return loss, np.exp(log_probabilities)


@reference("softmax_cross_entropy_gradient")
def softmax_cross_entropy_gradient(probabilities: Array, labels: Array, dloss: Array) -> Array:
    classes = probabilities.shape[1]
    check_range("softmax_cross_entropy_gradient", labels, classes)
    truth = one_hot(labels, depth=classes, dtype=probabilities.dtype.name)
    return (probabilities - truth) * dloss[:, None]


@reference("sigmoid_cross_entropy")
def sigmoid_cross_entropy(logits: Array, targets: Array) -> Array:
    return np.maximum(logits, 0) - logits * targets + np.log1p(np.exp(-np.abs(logits)))
