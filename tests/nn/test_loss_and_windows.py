"""Losses of classifiers, windows of convolution and pooling, and layers on bfloat16 images."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runner import nn
from runner.engine.graph import ops
from runner.engine.graph.autodiff import gradients
from runner.engine.graph.network import NetworkBuilder, Outputs
from runner.engine.graph.tensor import Tensor
from runner.nn import Padding, TooSmallError, place
from runner.tasks.classification import classify
from tests.nn.support import Array, Bench, bench, normal

LOGITS = 3.0 * normal(5, 4)
LABELS = np.array([0, 3, 3, 1, 0])


def classified(loss: str, logits: Array = LOGITS) -> tuple[Bench, Outputs]:
    b = bench(logits)
    labels = ops.placeholder(b.net.graph, LABELS.shape, "int64", name="y")
    b.feeds[labels] = LABELS
    return b, classify(b.net, b.x, labels, loss)


def softmax(x: Array) -> Array:
    e: Array = np.exp(x)
    p: Array = e / e.sum(axis=1, keepdims=True)
    return p


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def log_loss(x: Array) -> Array:
    """Return the softmax loss, which is the negative logarithm of the label's probability."""
    return -np.log(softmax(x)[np.arange(5), LABELS])


def logistic(x: Array) -> Array:
    """Return the logistic loss, summed over one unit per class."""
    p, truth = sigmoid(x), np.eye(4)[LABELS]
    return -(truth * np.log(p) + (1 - truth) * np.log(1 - p)).sum(axis=1)


@pytest.mark.parametrize(
    ("loss", "formula", "response"), [("softmax", log_loss, softmax), ("logistic", logistic, sigmoid)]
)
def test_losses_match_the_formula_and_gradients_are_response_minus_truth(
    loss: str, formula: Callable[[Array], Array], response: Callable[[Array], Array]
) -> None:
    b, outputs = classified(loss)
    np.testing.assert_allclose(b.value(outputs.losses), formula(LOGITS), rtol=1e-12)
    (found,) = gradients(b.net.graph, [outputs.losses], [outputs.prediction])
    np.testing.assert_allclose(b.value(found), response(LOGITS) - np.eye(4)[LABELS], rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_predictions_are_the_largest_logits_and_hits_match_labels(loss: str) -> None:
    b, outputs = classified(loss)
    predictions, correct = b.values(outputs.collected["predictions"], outputs.metrics["accuracy"])
    assert predictions.dtype == np.int64
    assert correct.dtype == LOGITS.dtype
    assert (predictions == LOGITS.argmax(axis=1)).all()
    assert (correct == (predictions == LABELS)).all()
    assert 0 < correct.sum() < 5


def test_the_loss_is_a_layer_of_kind_loss() -> None:
    b, outputs = classified("softmax")
    stamp = b.net.graph.nodes[outputs.losses.node].layer
    assert stamp is not None
    assert (stamp.name, stamp.kind) == ("loss", "loss")
    assert b.net.layer_outputs["loss"] == outputs.losses


SIDES = st.integers(1, 40)
WINDOWS = st.integers(1, 7)
STRIDES = st.integers(1, 5)


def count(side: int, window: int, stride: int, padding: Padding, *, ceil: bool = False) -> int:
    """Return the number of windows along one side, computed as in the ops."""
    placed = place((side, side), window, stride, padding, ceil=ceil)
    return (side + placed.padding[0] + placed.padding[1] - window) // stride + 1


@pytest.mark.parametrize(
    ("padding", "expected"),
    [("valid", (0, 0, 0, 0)), (2, (2, 2, 2, 2)), ((1, 2, 3, 0), (1, 2, 3, 0)), ([0, 1, 0, 1], (0, 1, 0, 1))],
)
def test_padding_is_used_as_written(padding: Padding, expected: tuple[int, ...]) -> None:
    assert place((9, 9), 3, 1, padding).padding == expected


def test_rows_and_columns_are_padded_separately() -> None:
    # With 4 windows and stride 2, 7 rows need 3 * 2 + 4 - 7 = 3 zeros, and 8 columns need 3 * 2 + 4 - 8 = 2.
    assert place((7, 8), 4, 2, "same").padding == (1, 2, 1, 1)


@given(SIDES, WINDOWS, STRIDES)
def test_same_padding_makes_size_over_stride_windows(side: int, window: int, stride: int) -> None:
    assert count(side, window, stride, "same") == math.ceil(side / stride)


@given(SIDES, WINDOWS, STRIDES, st.integers(0, 3))
def test_ceil_counts_windows_as_cuda_convnet_does(side: int, window: int, stride: int, padding: int) -> None:
    # There are 1 + ceil((in + 2 * pad - filter) / stride) windows if the last one touches the image.
    assume(window <= side + 2 * padding)
    windows = 1 + math.ceil((side + 2 * padding - window) / stride)
    assume((windows - 1) * stride < side + padding)
    assert count(side, window, stride, padding, ceil=True) == windows


@given(SIDES, WINDOWS, STRIDES, st.integers(0, 3))
def test_ceil_covers_all_pixels_and_starts_no_window_outside(side: int, window: int, stride: int, padding: int) -> None:
    assume(padding < window <= side)
    windows = count(side, window, stride, padding, ceil=True)
    assert (windows - 1) * stride < padding + side
    if stride <= window:
        assert (windows - 1) * stride + window >= padding + side


@pytest.mark.parametrize(
    ("side", "window", "stride", "ceil", "expected"),
    [
        # Pooling layers and the first convolution of AlexNet.
        *((side, 3, 2, True, expected) for side, expected in ((55, 27), (27, 13), (13, 6))),
        (224, 11, 4, True, 55),
        (224, 11, 4, False, 54),
        # An image smaller than the window can have one window if the number is rounded up.
        (2, 3, 2, True, 1),
    ],
)
def test_the_number_of_windows_is_as_expected(side: int, window: int, stride: int, ceil: bool, expected: int) -> None:
    assert count(side, window, stride, "valid", ceil=ceil) == expected


def test_the_error_for_a_small_image_names_both_sizes() -> None:
    with pytest.raises(TooSmallError, match="windows of 5x5 need images of at least 3x4, got 6x3; use"):
        place((6, 3), 5, 1, (1, 1, 0, 1))


@pytest.mark.parametrize("padding", ["SAME", (1, 2), [1, 2, 3, 4, 5]])
def test_unknown_padding_is_refused(padding: Padding) -> None:
    with pytest.raises(ValueError, match="expected 'valid', 'same', a width or"):
        place((9, 9), 3, 1, padding)


# Layers on bfloat16 images: outputs are bfloat16, variables and scores are float32.

NARROW = "bfloat16"
X = normal(4, 6, 8, 8).astype(NARROW)

Layer = Callable[[NetworkBuilder, Tensor], Tensor]
LAYERS: dict[str, Layer] = {
    "conv": lambda net, x: nn.conv(net, x, 8, 3, name="l", bias=0.5),
    "conv in groups": lambda net, x: nn.conv(net, x, 8, 3, name="l", groups=2, bias=None),
    "dense": lambda net, x: nn.dense(net, nn.flatten(net, x, name="flat"), 5, name="l", bias=0.5),
    "batch_norm": lambda net, x: nn.batch_norm(net, x, name="l"),
    "max_pool": lambda net, x: nn.max_pool(net, x, 2, name="l"),
    "avg_pool": lambda net, x: nn.avg_pool(net, x, 2, name="l"),
    "global_avg_pool": lambda net, x: nn.global_avg_pool(net, x, name="l"),
    "relu": lambda net, x: nn.relu(net, x, name="l"),
    "dropout": lambda net, x: nn.dropout(net, x, 0.4, name="l"),
    "local_response_normalization": lambda net, x: nn.local_response_normalization(net, x, name="l"),
    "add": lambda net, x: nn.add(net, x, nn.relu(net, x, name="relu"), name="l"),
    "concat": lambda net, x: nn.concat(net, [x, x], name="l"),
}


def _value(layer: Layer, x: Array, training: bool) -> Array:
    b = bench(x, training=training)
    y = layer(b.net, b.x)
    assert b.net.graph.spec(y).dtype == x.dtype.name
    assert {variable.spec.dtype for variable in b.net.variables} <= {b.net.state_dtype}
    assert {b.net.graph.spec(update.batch_value).dtype for update in b.net.state_updates} <= {b.net.state_dtype}
    return b.value(y)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_layer_agrees_with_float32(layer: Layer, training: bool) -> None:
    narrow, wide = (_value(layer, X.astype(dtype), training).astype("float32") for dtype in (NARROW, "float32"))
    assert np.abs(narrow - wide).max() <= 2**-7 * np.abs(wide).max()


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_a_classifier_computes_scores_in_float32(loss: str) -> None:
    b, outputs = classified(loss, LOGITS.astype(NARROW))
    for tensor in (outputs.losses, outputs.prediction, outputs.metrics["accuracy"]):
        assert b.net.graph.spec(tensor).dtype == "float32"
    np.testing.assert_array_equal(b.value(outputs.prediction), LOGITS.astype(NARROW).astype("float32"))
