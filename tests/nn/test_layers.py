"""Layers: values, shapes, names, and errors for wrong inputs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from scipy import special

from runner import nn
from runner.engine.graph import Constant, NetworkBuilder, ShapeError, Tensor
from runner.errors import ConfigError
from tests.nn.support import Array, Bench, bench, images, initial_values, names, normal

Layer = Callable[..., Any]


def correlate(x: Array, w: Array, stride: int, padding: tuple[int, int, int, int]) -> Array:
    """Return the convolution with one group, computed by its definition."""
    top, bottom, left, right = padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = sliding_window_view(padded, w.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("ncijuv,ocuv->noij", windows, w)


class TestConv:
    @pytest.mark.parametrize(
        ("padding", "kernel", "stride", "explicit"),
        [
            ("valid", 3, 2, (0, 0, 0, 0)),
            ("same", 4, 1, (1, 2, 1, 2)),
            (1, 3, 2, (1, 1, 1, 1)),
            ((0, 2, 1, 0), 2, 3, (0, 2, 1, 0)),
        ],
    )
    def test_is_correlation_plus_bias(
        self, padding: nn.Padding, kernel: int, stride: int, explicit: tuple[int, int, int, int]
    ) -> None:
        x = normal(2, 3, 7, 5)
        b = bench(x)
        y = nn.conv(b.net, b.x, 4, kernel, name="c", stride=stride, padding=padding)
        w, bias = normal(4, 3, kernel, kernel, seed=2), normal(4, seed=3)
        b.set("c/weights", w)
        b.set("c/bias", bias)
        expected = correlate(x, w, stride, explicit) + bias[:, None, None]
        np.testing.assert_allclose(b.value(y), expected, rtol=0, atol=1e-12)

    def test_dilation_spreads_the_pixels_of_a_window(self) -> None:
        x, w = normal(2, 3, 7, 8), normal(4, 3, 3, 3, seed=2)
        b = bench(x)
        y = nn.conv(b.net, b.x, 4, 3, name="c", stride=2, padding="same", dilation=2, bias=None)
        b.set("c/weights", w)
        spread = np.zeros((4, 3, 5, 5))
        spread[:, :, ::2, ::2] = w
        np.testing.assert_allclose(b.value(y), correlate(x, spread, 2, (2, 2, 1, 2)), rtol=0, atol=1e-12)

    @pytest.mark.parametrize("stride", [1, 2, 3])
    def test_a_transposed_convolution_is_the_adjoint(self, stride: int) -> None:
        small, large = normal(2, 4, 5, 3), normal(2, 3, 5 * stride, 3 * stride, seed=2)
        b, other = bench(large), bench(small)
        y = nn.conv(b.net, b.x, 4, 4, name="c", stride=stride, padding="same", bias=None)
        x = nn.conv_transpose(other.net, other.x, 3, 4, name="t", stride=stride, padding="same", bias=None)
        assert other.shape(x) == large.shape
        w = normal(4, 3, 4, 4, seed=3)
        b.set("c/weights", w)
        other.set("t/weights", w)
        assert np.vdot(b.value(y), small) == pytest.approx(np.vdot(large, other.value(x)), rel=1e-12)

    def test_default_weights_are_he_normal(self) -> None:
        b = bench(images(1, 50, 5, 5))
        nn.conv(b.net, b.x, 100, 3, name="c", bias=-7.0)
        values = initial_values(b.net)
        weights, bias = (values[b.net.variables[name].tensor] for name in ("c/weights", "c/bias"))
        # With 45,000 draws, four standard errors of the sample deviation are 1.4 %.
        assert weights.std() == pytest.approx((2 / (50 * 9)) ** 0.5, rel=0.014)
        assert (bias == -7.0).all()


class TestDense:
    def test_accepts_an_initializer_and_no_bias(self) -> None:
        b = bench(np.ones((1, 5)))
        y = nn.dense(b.net, b.x, 2, name="fc", bias=None, initializer=Constant(0.5))
        assert b.value(y).tolist() == [[2.5, 2.5]]
        assert names(list(b.net.variables)) == ["fc/weights"]


class TestPooling:
    def test_stride_is_the_window_unless_given(self) -> None:
        b = bench(images(1, 1, 9, 7))
        assert b.shape(nn.max_pool(b.net, b.x, 3, name="p")) == (1, 1, 3, 2)

    def test_rounding_up_adds_partial_windows(self) -> None:
        x = np.arange(16.0).reshape(1, 1, 4, 4)
        b = bench(x)
        largest, mean = b.values(
            nn.max_pool(b.net, b.x, 3, name="max", stride=2, ceil=True),
            nn.avg_pool(b.net, b.x, 3, name="avg", stride=2, ceil=True),
        )
        assert largest[0, 0].tolist() == [[10.0, 11.0], [14.0, 15.0]]
        assert mean[0, 0].tolist() == [[5.0, 6.5], [11.0, 12.5]]


def two_branches(layer: Layer) -> Layer:
    """Return the layer "l" that reads x and its ReLU."""
    return lambda net, x: layer(net, x, nn.relu(net, x, name="r"), name="l")


FORMULAS: dict[str, tuple[Layer, Callable[[Array], Array], str]] = {
    "relu": (lambda net, x: nn.relu(net, x, name="l"), lambda x: np.maximum(x, 0), "activation"),
    "sigmoid": (lambda net, x: nn.sigmoid(net, x, name="l"), special.expit, "activation"),
    "tanh": (lambda net, x: nn.tanh(net, x, name="l"), np.tanh, "activation"),
    "gelu": (lambda net, x: nn.gelu(net, x, name="l"), lambda x: x * special.ndtr(x), "activation"),
    "softmax": (lambda net, x: nn.softmax(net, x, name="l"), lambda x: special.softmax(x, -1), "activation"),
    "scale": (lambda net, x: nn.scale(net, x, -0.5, name="l"), lambda x: -0.5 * x, "activation"),
    "offset": (lambda net, x: nn.scale(net, x, -0.5, offset=2.0, name="l"), lambda x: -0.5 * x + 2.0, "activation"),
    "flatten": (lambda net, x: nn.flatten(net, x, name="l"), lambda x: x.reshape(2, -1), "shape"),
    "global mean": (lambda net, x: nn.global_avg_pool(net, x, name="l"), lambda x: x.mean(axis=(2, 3)), "pool"),
    "add": (two_branches(nn.add), lambda x: x + np.maximum(x, 0), "merge"),
    "multiply": (two_branches(nn.multiply), lambda x: x * np.maximum(x, 0), "merge"),
    "concat": (
        lambda net, x: nn.concat(net, [x, nn.max_pool(net, x, 1, name="p"), nn.relu(net, x, name="r")], name="l"),
        lambda x: np.concatenate([x, x, np.maximum(x, 0)], axis=1),
        "merge",
    ),
}
"""Layer -> function that adds the layer "l", its formula, and its kind."""


@pytest.mark.parametrize("label", FORMULAS)
def test_a_layer_without_variables_is_its_formula(label: str) -> None:
    layer, formula, kind = FORMULAS[label]
    x = normal(2, 3, 4, 5)
    b = bench(x)
    np.testing.assert_allclose(b.value(layer(b.net, b.x)), formula(x), rtol=1e-13, atol=1e-15)
    assert kind_of(b, "l") == kind


def test_an_identity_adds_no_node() -> None:
    training, evaluation = bench(images(2, 12)), bench(images(2, 12), training=False)
    assert nn.flatten(training.net, training.x, name="f") == training.x
    assert nn.dropout(training.net, training.x, 0.0, name="d") == training.x
    assert nn.dropout(evaluation.net, evaluation.x, 0.5, name="d") == evaluation.x


class TestDropout:
    def test_drops_and_scales(self) -> None:
        b = bench(np.ones((40, 500)))
        y = b.value(nn.dropout(b.net, b.x, 0.2, name="d"))
        assert set(np.unique(y)) == {0.0, 1.25}
        # The mean of 20,000 draws with deviation 0.5 has a standard error of 0.0035; four of them are 0.0142.
        assert y.mean() == pytest.approx(1.0, abs=0.0142)

    def test_draws_depend_on_layer_step_and_example(self) -> None:
        def drawn(first: int, count: int, *, step: int = 0, name: str = "d", scope: str = "all") -> Array:
            b = bench(np.ones((count, 64)), step=step, first_index=first)
            with b.net.graph.name_scope(scope):
                return b.value(nn.dropout(b.net, b.x, 0.5, name=name))

        whole = drawn(0, 8)
        assert (drawn(5, 3, scope="share_1") == whole[5:]).all()
        assert (drawn(0, 8, step=1) != whole).any()
        assert (drawn(0, 8, name="other") != whole).any()


class TestBatchNorm:
    @pytest.mark.parametrize("shape", [(6, 3), (4, 3, 2, 5)])
    @pytest.mark.parametrize("training", [True, False])
    def test_training_uses_the_batch_and_evaluation_the_averages(self, shape: tuple[int, ...], training: bool) -> None:
        x, gamma, beta, mean = 3.0 + 2.0 * normal(*shape), *(normal(3, seed=seed) for seed in (2, 3, 4))
        variance = np.abs(normal(3, seed=5))
        b = bench(x, training=training)
        y = nn.batch_norm(b.net, b.x, name="n", epsilon=1e-3, decay=0.75)
        given = {"gamma": gamma, "beta": beta, "moving_mean": mean, "moving_variance": variance}
        for key, value in given.items():
            b.set(f"n/{key}", value)
        updates = b.net.state_updates
        if training:
            axes = tuple(axis for axis in range(len(shape)) if axis != 1)
            mean, variance = x.mean(axis=axes), x.var(axis=axes)
            for update, expected in zip(updates, (mean, variance), strict=True):
                np.testing.assert_allclose(b.value(update.batch_value), expected, rtol=1e-12)
        averages = [("n/moving_mean", 0.75), ("n/moving_variance", 0.75)]
        assert [(u.variable.name, u.decay) for u in updates] == (averages if training else [])
        gamma, beta, mean, variance = (
            each.reshape(3, *(1 for _ in shape[2:])) for each in (gamma, beta, mean, variance)
        )
        expected = gamma * (x - mean) / np.sqrt(variance + 1e-3) + beta
        np.testing.assert_allclose(b.value(y), expected, rtol=0, atol=1e-12)

    def test_evaluation_of_a_new_network_is_nearly_the_identity(self) -> None:
        x = normal(4, 3)
        b = bench(x, training=False)
        y = b.value(nn.batch_norm(b.net, b.x, name="n", epsilon=1e-5))
        np.testing.assert_allclose(y, x, rtol=1e-5)

    def test_averages_are_not_trained_and_nothing_decays(self) -> None:
        b = bench(images(4, 3))
        nn.batch_norm(b.net, b.x, name="n")
        assert names(b.net.variables.trainable) == ["n/gamma", "n/beta"]
        assert names(list(b.net.variables)) == ["n/gamma", "n/beta", "n/moving_mean", "n/moving_variance"]
        assert not any(variable.decayed for variable in b.net.variables)
        assert [update.decay for update in b.net.state_updates] == [0.9, 0.9]


class TestLocalResponseNormalization:
    @pytest.mark.parametrize(("divide_by_size", "weight"), [(False, 0.1), (True, 0.02)])
    def test_divides_by_the_energy_of_neighbouring_channels(self, divide_by_size: bool, weight: float) -> None:
        x = normal(2, 7, 3, 2)
        b = bench(x)
        y = nn.local_response_normalization(
            b.net, b.x, name="n", size=5, alpha=0.1, beta=0.75, k=2.0, divide_by_size=divide_by_size
        )
        energy = np.stack([(x[:, max(0, c - 2) : c + 3] ** 2).sum(axis=1) for c in range(7)], axis=1)
        np.testing.assert_allclose(b.value(y), x / (2.0 + weight * energy) ** 0.75, rtol=0, atol=1e-12)


class TestWhatStrategiesAndExplainRead:
    def test_nodes_and_variables_have_the_name_of_their_layer(self) -> None:
        b = bench(images(2, 3, 8, 8))
        net = b.net
        h = nn.conv(net, b.x, 4, 3, name="conv1", padding="same")
        h = nn.batch_norm(net, h, name="norm1")
        h = nn.relu(net, h, name="relu1")
        h = nn.max_pool(net, h, 2, name="pool1")
        h = nn.dropout(net, h, 0.5, name="drop1")
        h = nn.flatten(net, h, name="flat")
        h = nn.dense(net, h, 10, name="fc1")
        kinds = {node.layer.name: node.layer.kind for node in net.graph if node.layer is not None}
        assert [*kinds.values()] == ["conv", "norm", "activation", "pool", "regularizer", "shape", "dense"]
        assert list(net.layer_outputs) == list(kinds) == ["conv1", "norm1", "relu1", "pool1", "drop1", "flat", "fc1"]
        assert net.layer_outputs["fc1"] == h
        assert all(v.layer is not None and v.name.startswith(f"{v.layer.name}/") for v in net.variables)


def kind_of(b: Bench, name: str) -> str:
    stamp = b.net.graph.nodes[b.net.layer_outputs[name].node].layer
    assert stamp.name == name
    return stamp.kind


class TestZeroPaddedShortcut:
    @pytest.mark.parametrize(("stride", "size"), [(1, (5, 6)), (2, (3, 3)), (3, (2, 2))])
    def test_takes_every_stride_th_pixel(self, stride: int, size: tuple[int, int]) -> None:
        x = normal(2, 3, 5, 6)
        b = bench(x)
        y = b.value(nn.zero_padded_shortcut(b.net, b.x, 7, stride=stride, name="s"))
        assert y.shape == (2, 7, *size)
        assert (y[:, :3] == x[:, :, ::stride, ::stride]).all()
        assert not y[:, 3:].any()
        assert kind_of(b, "s") == "shape"


TOO_SMALL = (
    "layer 'conv2' (conv): windows of 5x5 need images of at least 3x3, got 3x2; use larger images, "
    "or a model that downsamples less"
)
TWO_SHAPES = "layer 'a' (merge): expected two inputs of one shape, got float64[2,3,4,4] and float64[2,3,1,1]"


@pytest.mark.parametrize(
    ("layer", "shape", "error", "message"),
    [
        (lambda n, x: nn.conv(n, x, 4, 5, name="conv2", padding=1), (1, 3, 3, 2), ConfigError, TOO_SMALL),
        (lambda n, x: nn.conv(n, x, 4, 3, name="c"), (2, 12), ConfigError, "'c' (conv): expected images (N, C, H, W)"),
        (
            lambda n, x: nn.conv(n, x, 4, 3, name="c", dilation=3),
            (1, 3, 6, 6),
            ConfigError,
            "windows of 7x7 need images",
        ),
        (lambda n, x: nn.conv_transpose(n, x, 4, 3, name="t", padding=2), (1, 3, 2, 2), ConfigError, "of 0x0 pixels"),
        (
            lambda n, x: nn.conv_transpose(n, x, 4, 3, name="t", output_padding=1),
            (1, 3, 2, 2),
            ValueError,
            "expected 0",
        ),
        (lambda n, x: nn.layer_norm(n, x, axes=2, name="n"), (2, 3), ValueError, "layer 'n': axes=2, expected 1 to 1"),
        (lambda n, x: nn.group_norm(n, x, 2, name="n"), (2, 3), ValueError, "groups=2, expected a divisor of the 3 "),
        (lambda n, x: nn.embedding(n, x, 5, 3, name="e"), (2, 3), ShapeError, "indices of dtype int32 or int64, got"),
        (lambda n, x: nn.dense(n, x, 4, name="f"), (2, 3, 4, 4), ShapeError, "images first, got float64[2,3,4,4]"),
        (lambda n, x: nn.max_pool(n, x, 2, name="p"), (1, 3, 1, 8), ConfigError, "'p' (pool): windows of 2x2 need"),
        (lambda n, x: nn.add(n, x, _pooled(n, x, 4), name="a"), (2, 3, 4, 4), ShapeError, TWO_SHAPES),
        (lambda n, x: nn.multiply(n, x, _pooled(n, x, 4), name="a"), (2, 3, 4, 4), ShapeError, TWO_SHAPES),
        (lambda n, x: nn.concat(n, [x, _pooled(n, x, 2)], name="c"), (2, 3, 4, 4), ShapeError, "differ only on axis 1"),
        (lambda n, x: nn.zero_padded_shortcut(n, x, 3, name="s"), (1, 4, 4, 4), ShapeError, "two non-negative widths"),
        (lambda n, x: nn.relu(n, nn.relu(n, x, name="r"), name="r"), (2, 3), ValueError, "layer 'r' is added twice"),
    ],
)
def test_wrong_inputs_are_refused(layer: Layer, shape: tuple[int, ...], error: type[Exception], message: str) -> None:
    b = bench(images(*shape))
    with pytest.raises(error) as caught:
        layer(b.net, b.x)
    assert message in str(caught.value)


def _pooled(net: NetworkBuilder, x: Tensor, window: int) -> Tensor:
    return nn.max_pool(net, x, window, name="p")
