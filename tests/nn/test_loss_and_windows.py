"""Losses of classifiers, windows of convolution and pooling, and layers on bfloat16 images."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runner import nn
from runner.engine.graph import NetworkBuilder, Outputs, Tensor, gradients, ops
from runner.engine.graph.network import COUNTED
from runner.errors import ConfigError
from runner.fields import Field, labelled
from runner.models import Mlp, Model
from runner.nn.windows import Padding, place
from runner.tasks.classification import Classification
from runner.tasks.regression import Regression
from runner.testing import check_gradients
from tests.nn.support import Array, Bench, bench, normal

LOGITS = 3.0 * normal(5, 4)
LABELS = np.array([0, 3, 3, 1, 0])
FOUR_CLASSES = labelled((1, 6, 6), tuple("abcd"))


def classified(loss: str, logits: Array = LOGITS, labels: Array = LABELS, **settings: Any) -> tuple[Bench, Outputs]:
    b = bench(logits)
    y = ops.placeholder(b.net.graph, labels.shape, "int64", name="y")
    b.feeds[y] = labels
    return b, Classification(loss=loss, **settings).score(b.net, b.x, {"y": y})


def softmax(x: Array) -> Array:
    e: Array = np.exp(x)
    return e / e.sum(axis=1, keepdims=True)


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


WEIGHTS = [0.5, 2.0, 0.25, 1.5]
SETTINGS: dict[str, dict[str, Any]] = {
    "smoothed": {"label_smoothing": 0.1},
    "weighted": {"class_weights": WEIGHTS},
    "smoothed and weighted": {"label_smoothing": 0.3, "class_weights": WEIGHTS},
    "a class is ignored": {"ignored_label": 3, "class_weights": WEIGHTS},
    "no class is ignored": {"ignored_label": -100, "label_smoothing": 0.1, "class_weights": WEIGHTS},
}


@pytest.mark.parametrize("label", SETTINGS)
def test_smoothed_and_weighted_losses_equal_those_of_pytorch(label: str) -> None:
    """Losses of single examples are compared, because PyTorch's mean divides by the sum of the labels' weights."""
    torch = pytest.importorskip("torch")
    settings, labels = SETTINGS[label], LABELS.copy()
    if settings.get("ignored_label", 0) < 0:
        labels[1] = settings["ignored_label"]
    b, outputs = classified("softmax", labels=labels, **settings)
    (found,) = gradients(b.net.graph, [outputs.losses], [outputs.prediction])
    logits = torch.tensor(LOGITS, requires_grad=True)
    weights = torch.tensor(settings.get("class_weights", [1.0] * 4), dtype=torch.float64)
    ignored = settings.get("ignored_label", -1)
    losses = torch.nn.functional.cross_entropy(
        logits,
        torch.tensor(labels),
        weight=weights,
        ignore_index=ignored,
        label_smoothing=settings.get("label_smoothing", 0.0),
        reduction="none",
    )
    losses.sum().backward()
    np.testing.assert_allclose(b.value(outputs.losses), losses.detach().numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(b.value(found), logits.grad.numpy(), rtol=0, atol=1e-12)
    assert ((b.value(outputs.losses) == 0) == (labels == ignored)).all()


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_the_loss_of_an_example_is_multiplied_by_the_weight_of_its_label(loss: str) -> None:
    weighted, plain = classified(loss, class_weights=WEIGHTS), classified(loss)
    values = [b.value(outputs.losses) for b, outputs in (weighted, plain)]
    np.testing.assert_allclose(values[0], np.array(WEIGHTS)[LABELS] * values[1], rtol=1e-14)


def test_ignored_examples_add_nothing_to_metrics_and_are_marked() -> None:
    b, outputs = classified("softmax", labels=LOGITS.argmax(axis=1), ignored_label=int(LOGITS[0].argmax()))
    counted = LOGITS.argmax(axis=1) != LOGITS[0].argmax()
    assert 0 < counted.sum() < 5
    found = b.values(outputs.metrics["accuracy"], outputs.collected[COUNTED])
    assert all((value == counted).all() for value in found)


@pytest.mark.parametrize("label", SETTINGS)
def test_gradients_of_smoothed_and_weighted_losses_equal_difference_quotients(label: str) -> None:
    task = Classification(**{**SETTINGS[label], "ignored_label": 2})
    check_gradients(task.network(Mlp(hidden=[5]), FOUR_CLASSES), fields=FOUR_CLASSES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"label_smoothing": 0.1, "loss": "logistic"},
            "task.label_smoothing=0.1 with task.loss=logistic: expected 0; only task.loss=softmax has targets",
        ),
        ({"class_weights": [1.0, 2.0]}, "task.class_weights: found 2 weights; expected one for each class, 4"),
    ],
)
def test_settings_that_do_not_fit_the_loss_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        check_gradients(Classification(**settings).network(Mlp(hidden=[5]), FOUR_CLASSES), fields=FOUR_CLASSES)


SIDES = st.integers(1, 40)
WINDOWS = st.integers(1, 7)
STRIDES = st.integers(1, 5)


def count(side: int, window: int, stride: int, padding: Padding, *, ceil: bool = False) -> int:
    """Return the number of windows along one side, computed as in the ops."""
    placed = place((side, side), window, stride, padding, ceil=ceil)
    return (side + placed.padding[0] + placed.padding[1] - window) // stride + 1


def test_rows_and_columns_are_padded_separately() -> None:
    # 4 windows of size 4 at stride 2 span 3 * 2 + 4 = 10 pixels: 7 rows need 3 zeros, and 8 columns need 2.
    assert place((7, 8), 4, 2, "same").padding == (1, 2, 1, 1)


@given(SIDES, WINDOWS, STRIDES)
def test_same_padding_makes_size_over_stride_windows(side: int, window: int, stride: int) -> None:
    assert count(side, window, stride, "same") == math.ceil(side / stride)


@given(SIDES, WINDOWS, STRIDES, st.integers(0, 3))
def test_ceil_counts_windows_as_cuda_convnet_does(side: int, window: int, stride: int, padding: int) -> None:
    # There are 1 + ceil((in + 2 * pad - filter) / stride) windows if the last window touches the image.
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


def test_an_image_smaller_than_the_window_has_one_window_if_the_number_is_rounded_up() -> None:
    assert count(2, 3, 2, "valid", ceil=True) == 1


def test_the_error_for_a_small_image_names_both_sizes() -> None:
    with pytest.raises(ConfigError, match="windows of 5x5 need images of at least 3x4, got 6x3; use"):
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
    "conv_transpose": lambda net, x: nn.conv_transpose(net, x, 8, 3, name="l", stride=2, bias=0.5),
    "dense": lambda net, x: nn.dense(net, nn.flatten(net, x, name="flat"), 5, name="l", bias=0.5),
    "batch_norm": lambda net, x: nn.batch_norm(net, x, name="l"),
    "layer_norm": lambda net, x: nn.layer_norm(net, x, name="l"),
    "group_norm": lambda net, x: nn.group_norm(net, x, 3, name="l"),
    "embedding": lambda net, x: nn.embedding(net, ops.cast(net.graph, ops.abs(net.graph, x), "int64"), 8, 3, name="l"),
    "max_pool": lambda net, x: nn.max_pool(net, x, 2, name="l"),
    "avg_pool": lambda net, x: nn.avg_pool(net, x, 2, name="l"),
    "global_avg_pool": lambda net, x: nn.global_avg_pool(net, x, name="l"),
    "relu": lambda net, x: nn.relu(net, x, name="l"),
    "tanh": lambda net, x: nn.tanh(net, x, name="l"),
    "gelu": lambda net, x: nn.gelu(net, x, name="l"),
    "softmax": lambda net, x: nn.softmax(net, x, name="l"),
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


@dataclass
class TwoHeads(Model):
    """A dense layer, and an auxiliary head whose loss has the weight 0.25."""

    name: str = "two_heads"

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        net.auxiliary.append((nn.dense(net, x, outputs, name="aux_fc"), 0.25))
        return nn.dense(net, x, outputs, name="fc")


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
@pytest.mark.parametrize("training", [True, False])
def test_the_losses_of_auxiliary_heads_are_added_in_training_only(loss: str, training: bool) -> None:
    b = bench(LOGITS, training=training)
    labels = ops.placeholder(b.net.graph, LABELS.shape, "int64", name="y")
    b.feeds[labels] = LABELS
    outputs = Classification(loss=loss).network(TwoHeads(), FOUR_CLASSES)(b.net, {"x": b.x, "y": labels})
    logits = [b.value(b.net.layer_outputs[name]) for name in ("fc", "aux_fc")]
    main, auxiliary = ({"softmax": log_loss, "logistic": logistic}[loss](each) for each in logits)
    expected = main + 0.25 * auxiliary if training else main
    np.testing.assert_allclose(b.value(outputs.losses), expected, rtol=1e-12)
    np.testing.assert_array_equal(b.value(outputs.collected["predictions"]), logits[0].argmax(axis=1))


def test_a_regression_adds_the_losses_of_auxiliary_heads() -> None:
    b = bench(LOGITS)
    target = ops.placeholder(b.net.graph, (5, 2), "float64", name="y")
    b.feeds[target] = normal(5, 2, seed=3)
    network = Regression().network(TwoHeads(), {"x": Field((4,)), "y": Field((2,))})
    losses = b.value(network(b.net, {"x": b.x, "y": target}).losses)
    main, auxiliary = (b.value(b.net.layer_outputs[name]) - b.feeds[target] for name in ("fc", "aux_fc"))
    np.testing.assert_allclose(losses, (main**2).mean(axis=1) + 0.25 * (auxiliary**2).mean(axis=1), rtol=1e-12)


def test_a_task_that_ignores_auxiliary_heads_is_refused() -> None:
    class Ignorant(Classification):
        def score(self, net: NetworkBuilder, prediction: Tensor, batch: Mapping[str, Tensor]) -> Outputs:
            return Outputs(ops.reduce_sum(net.graph, prediction, axes=(1,)), {"accuracy": prediction}, {}, prediction)

    b = bench(LOGITS)
    network = Ignorant(name="ignorant").network(TwoHeads(), FOUR_CLASSES)
    with pytest.raises(ConfigError) as caught:
        network(b.net, {"x": b.x})
    assert str(caught.value) == (
        "task=ignorant: score added no loss for the auxiliary classifiers of model=two_heads; compute the losses with "
        "runner.tasks.base.training_losses, or set model.auxiliary_weight=0"
    )
