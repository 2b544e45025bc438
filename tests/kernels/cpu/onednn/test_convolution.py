"""Convolution, its gradients and its fused forms over odd shapes, groups and layouts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import Array
from tests.kernels.cpu.onednn.checking import assert_broken_alike, check, expected, floats, kernel, kernels, normal
from tests.kernels.harness import Ran, Shaped, run

Ints = tuple[int, ...]


@dataclass(frozen=True)
class _Layer:
    """Images x (N, C, H, W) and weights w (O, C / groups, h, w)."""

    x: Ints
    w: Ints
    strides: Ints = (1, 1)
    padding: Ints = (0, 0, 0, 0)
    groups: int = 1

    @property
    def y(self) -> Ints:
        top, bottom, left, right = self.padding
        rows = (self.x[2] + top + bottom - self.w[2]) // self.strides[0] + 1
        return (self.x[0], self.w[0], rows, (self.x[3] + left + right - self.w[3]) // self.strides[1] + 1)

    def attributes(self, **more: Any) -> dict[str, Any]:
        return {"strides": self.strides, "padding": self.padding, "groups": self.groups, **more}


LAYERS = [
    pytest.param(_Layer((2, 3, 20, 19), (16, 3, 5, 4), (2, 3), (1, 2, 0, 1)), id="few channels"),
    pytest.param(_Layer((2, 32, 6, 6), (48, 32, 3, 3), padding=(1, 1, 1, 1)), id="whole blocks"),
    pytest.param(_Layer((3, 20, 9, 8), (50, 20, 5, 5)), id="blocks not full"),
    pytest.param(_Layer((2, 24, 7, 9), (20, 24, 3, 2), (2, 1), (0, 2, 1, 0)), id="asymmetric"),
    pytest.param(_Layer((1, 1, 12, 12), (6, 1, 5, 5)), id="one of one channel"),
    pytest.param(_Layer((1, 17, 1, 1), (5, 17, 1, 1)), id="one pixel"),
    pytest.param(_Layer((2, 32, 6, 6), (64, 32, 1, 1)), id="1x1"),
    pytest.param(_Layer((2, 32, 7, 7), (16, 32, 1, 1), (2, 2)), id="1x1 with strides"),
    pytest.param(_Layer((2, 32, 6, 6), (64, 16, 3, 3), padding=(1, 1, 1, 1), groups=2), id="two groups"),
    pytest.param(_Layer((2, 12, 6, 5), (20, 3, 3, 3), padding=(1, 1, 1, 1), groups=4), id="odd groups"),
    pytest.param(_Layer((2, 32, 6, 6), (32, 1, 3, 3), padding=(1, 1, 1, 1), groups=32), id="depthwise"),
    pytest.param(_Layer((2, 20, 6, 6), (40, 1, 3, 3), (2, 2), (1, 1, 1, 1), groups=20), id="odd depthwise"),
    pytest.param(_Layer((2, 16, 5, 5), (10, 16, 5, 5)), id="window as large as the image"),
]
FUSED = ("few channels", "whole blocks", "asymmetric", "1x1 with strides", "two groups", "depthwise")
"""Layers that are tried with every combination of what can be fused."""

TAGS = pytest.mark.parametrize("tag", ["", "aBcd16b", "acdb"])


def _gives(weights: Ints) -> dict[str, Any]:
    """Attributes of a gradient of weights."""
    return {"weight_shape": weights, "dtype": "float32"}


def _gradient(op: str, layer: _Layer, tag: str, shapes: Sequence[Ints], results: Sequence[Ints], **more: Any) -> Ran:
    arrays = [normal(seed, *shape) for seed, shape in enumerate(shapes)]
    tags = [tag if shape in (layer.x, layer.y) else "" for shape in shapes]
    return check(op, layer.attributes(**more), arrays, [floats(*shape) for shape in results], tags)


@TAGS
@pytest.mark.parametrize("layer", LAYERS)
def test_forward(layer: _Layer, tag: str) -> None:
    check("conv2d", layer.attributes(), [normal(1, *layer.x), normal(2, *layer.w)], [floats(*layer.y)], [tag, ""])


@TAGS
@pytest.mark.parametrize("layer", LAYERS)
def test_the_gradient_of_the_images(layer: _Layer, tag: str) -> None:
    _gradient("conv2d_input_gradient", layer, tag, [layer.y, layer.w], [layer.x], input_shape=layer.x)


@TAGS
@pytest.mark.parametrize("layer", LAYERS)
def test_the_gradient_of_the_weights(layer: _Layer, tag: str) -> None:
    _gradient("conv2d_weight_gradient", layer, tag, [layer.y, layer.x], [layer.w], **_gives(layer.w))


@TAGS
@pytest.mark.parametrize("layer", LAYERS)
def test_the_gradients_of_weights_and_bias(layer: _Layer, tag: str) -> None:
    results = [layer.w, layer.w[:1]]
    _gradient("conv2d_weight_bias_gradient", layer, tag, [layer.y, layer.x], results, **_gives(layer.w))


def _operands(layer: _Layer, *, bias: bool, residual: bool) -> list[Array]:
    added = [normal(3, layer.w[0])] * bias + [normal(4, *layer.y)] * residual
    return [normal(1, *layer.x), normal(2, *layer.w), *added]


@pytest.mark.parametrize(("bias", "residual", "relu"), list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("layer", [each for each in LAYERS if each.id in FUSED])
def test_with_bias_residual_and_relu(layer: _Layer, bias: bool, residual: bool, relu: bool) -> None:
    arrays = _operands(layer, bias=bias, residual=residual)
    attributes = layer.attributes(bias=bias, residual=residual, relu=relu)
    check("conv2d_fused", attributes, arrays, [floats(*layer.y)])


@pytest.mark.parametrize("layer", [each for each in LAYERS if each.id in FUSED])
def test_relu_lets_nan_through(layer: _Layer) -> None:
    arrays = _operands(layer, bias=True, residual=True)
    arrays[0][0, 0, 0, 0] = np.nan
    attributes, outputs = layer.attributes(bias=True, residual=True, relu=True), [floats(*layer.y)]
    inputs = [Shaped.of(array) for array in arrays]
    ran = run(kernel("conv2d_fused"), attributes, inputs, outputs, arrays, registry=kernels())
    assert_broken_alike(ran.outputs[0], expected("conv2d_fused", attributes, arrays, outputs)[0])


@pytest.mark.parametrize("layer", LAYERS)
def test_the_result_takes_the_place_of_a_residual_only_where_that_is_safe(layer: _Layer) -> None:
    arrays = _operands(layer, bias=True, residual=True)
    attributes = layer.attributes(bias=True, residual=True, relu=True)
    check("conv2d_fused", attributes, arrays, [floats(*layer.y)], in_place=True)


def test_one_convolution_takes_what_another_gives() -> None:
    layer = _Layer((2, 32, 9, 9), (32, 32, 3, 3), padding=(1, 1, 1, 1))
    arrays = [normal(1, *layer.x), normal(2, *layer.w)]
    ran = check("conv2d", layer.attributes(), arrays, [floats(*layer.y)])
    assert ran.arrangement.inputs[0] == ran.arrangement.outputs[0]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_of_few_channels_are_taken_plain(channels: int, size: int) -> None:
    layer = _Layer((2, channels, 9, 9), (16, channels, size, size))
    forward = check("conv2d", layer.attributes(), [normal(1, *layer.x), normal(2, *layer.w)], [floats(*layer.y)])
    backward = _gradient("conv2d_weight_gradient", layer, "", [layer.y, layer.x], [layer.w], **_gives(layer.w))
    assert forward.arrangement.inputs[0].is_plain
    assert backward.arrangement.inputs[1].is_plain
