"""The losses and metrics that the settings of a task can name."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from runner.engine.graph import Expr, apply, ops
from runner.tasks.base import LABELS, MAX, MIN, NUMBERS, Loss, Metric

_LOWEST = -3e38
"""A number below all logits that is finite in every dtype."""


def softmax(logits: Expr, labels: Expr) -> Expr:
    """Return the cross-entropy of a softmax over the classes, in nats."""
    return Expr(logits.graph, ops.softmax_cross_entropy(logits.graph, logits.tensor, labels.tensor)[0])


def smoothed_softmax(logits: Expr, labels: Expr, smoothing: float, weights: Sequence[float] | None = None) -> Expr:
    """Return the cross-entropy of a softmax with smoothed labels (Szegedy et al. 2016, section 7), in nats.

    Every class has the target smoothing / C; the target of the label is larger by (1 - smoothing). weights: one factor
    for the term of each class, as in PyTorch's ``cross_entropy``; None for factors of 1.
    """
    loss, scores = softmax(logits, labels), logits
    chosen = apply(ops.one_hot, labels, depth=logits.spec.shape[1], dtype=logits.spec.dtype)
    # The loss of class c is log_sum - logits[c].
    log_sum = loss + apply(ops.reduce_sum, logits * chosen, axes=(1,))
    if weights is not None:
        scores = logits * _table(logits, weights)
        loss = loss * weights_of(labels, logits, weights)
        log_sum = log_sum * (sum(weights) / len(weights))
    return (1.0 - smoothing) * loss + smoothing * (log_sum - apply(ops.reduce_mean, scores, axes=(1,)))


def weights_of(labels: Expr, logits: Expr, weights: Sequence[float]) -> Expr:
    """Return the weight of each example's class, (N,), in the dtype of the logits."""
    chosen = apply(ops.one_hot, labels, depth=len(weights), dtype=logits.spec.dtype)
    return apply(ops.reduce_sum, chosen * _table(logits, weights), axes=(1,))


def _table(logits: Expr, weights: Sequence[float]) -> Expr:
    return Expr(logits.graph, ops.constant(logits.graph, np.array(weights, logits.spec.dtype)))


def logistic(logits: Expr, labels: Expr) -> Expr:
    """Return the sum of the cross-entropies of one logistic unit per class, in nats.

    The target is 1 for the label and 0 for all other classes (Krizhevsky 2014, 1-of-C).
    """
    targets = apply(ops.one_hot, labels, depth=logits.spec.shape[1], dtype=logits.spec.dtype)
    return apply(ops.reduce_sum, apply(ops.sigmoid_cross_entropy, logits, targets), axes=(1,))


def squared(prediction: Expr, target: Expr) -> Expr:
    """Return the mean of the squared errors of the K numbers."""
    error = prediction - target
    return apply(ops.reduce_mean, error * error, axes=(1,))


def absolute(prediction: Expr, target: Expr) -> Expr:
    """Return the mean of the absolute errors of the K numbers."""
    return apply(ops.reduce_mean, abs(prediction - target), axes=(1,))


def top_accuracy(logits: Expr, labels: Expr, k: int) -> Expr:
    """Return 1 where fewer than k classes have a larger logit than the label, else 0, also if a logit is NaN."""
    classes, dtype = logits.spec.shape[1], logits.spec.dtype
    # A network excludes a class by a logit of -infinity, whose product with 0 would be NaN.
    logits = apply(ops.maximum, logits, logits.scalar(_LOWEST))
    chosen = apply(ops.one_hot, labels, depth=classes, dtype=dtype)
    own = apply(ops.reduce_sum, logits * chosen, axes=(1,), keepdims=True)
    # A comparison with NaN is false: an example with NaN has no class behind its label, and counts as wrong. With fewer
    # than k classes, the label itself must still be behind.
    behind = apply(ops.reduce_sum, apply(ops.cast, apply(ops.greater_equal, own, logits), dtype=dtype), axes=(1,))
    return apply(ops.cast, apply(ops.greater, behind, behind.scalar(max(classes - k, 0))), dtype=dtype)


def top_error(logits: Expr, labels: Expr, k: int) -> Expr:
    """Return 1 where k or more classes have a larger logit than the label, or a logit is NaN, else 0."""
    return 1.0 - top_accuracy(logits, labels, k)


LOSSES: dict[str, Loss] = {
    "softmax": Loss(LABELS, softmax),
    "logistic": Loss(LABELS, logistic),
    "squared": Loss(NUMBERS, squared),
    "absolute": Loss(NUMBERS, absolute),
}
"""Value of ``task.loss`` -> the loss."""

METRICS: dict[str, Metric] = {
    "top5_accuracy": Metric(MAX, ".2%", LABELS, partial(top_accuracy, k=5)),
    "error": Metric(MIN, ".2%", LABELS, partial(top_error, k=1)),
    "top5_error": Metric(MIN, ".2%", LABELS, partial(top_error, k=5)),
    "mae": Metric(MIN, ".4g", NUMBERS, absolute),
    "mse": Metric(MIN, ".4g", NUMBERS, squared),
}
"""Entry of ``task.metrics`` -> the metric."""
