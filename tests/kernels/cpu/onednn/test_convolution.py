"""Layouts of convolutions, NaN before a ReLU, and biases in float32; the table compares the other values."""

from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import Array
from tests.kernels.cpu.layout_cases import FUSED, LAYERS, slid
from tests.kernels.cpu.onednn.checking import (
    assert_broken_alike,
    check,
    expected,
    floats,
    kernel,
    kernels,
    library,
    normal,
)
from tests.kernels.harness import Shaped, run

SAME = {"strides": (1, 1), "padding": (1, 1, 1, 1), "groups": 1}
ALL = {"bias": True, "residual": True, "relu": True}


def _operands(name: str) -> tuple[list[Array], dict[str, Any]]:
    """x, w, bias and residual of a layer, and its attributes."""
    x, w, geometry = LAYERS[name]
    y = (x[0], w[0], *slid(x, w[2:], geometry["strides"], geometry["padding"]))
    return [normal(1, *x), normal(2, *w), normal(3, w[0]), normal(4, *y)], {**geometry, **ALL}


@pytest.mark.parametrize("name", FUSED)
def test_nan_passes_the_relu(name: str) -> None:
    arrays, attributes = _operands(name)
    arrays[0][0, 0, 0, 0] = np.nan
    inputs = [Shaped.of(array) for array in arrays]
    ran = run(kernel("conv2d_fused"), attributes, inputs, inputs[3:], arrays, registry=kernels())
    assert_broken_alike(ran.outputs[0], expected("conv2d_fused", attributes, arrays, inputs[3:])[0])


@pytest.mark.skipif("bfloat16" not in library().dtypes, reason="oneDNN has no bfloat16 on this CPU")
@pytest.mark.parametrize("tag", ["", "aBcd16b", "acdb"])
def test_the_bias_of_bfloat16_images_may_be_float32(tag: str) -> None:
    arrays, attributes = _operands("two groups")
    x, w, bias, residual = (array.astype("bfloat16") for array in arrays)
    inputs = [x, w / 16, bias.astype(np.float32), residual]
    check("conv2d_fused", attributes, inputs, [Shaped.of(residual)], [tag, "", "", tag], tolerance=2**-7)


def test_a_convolution_takes_the_layout_that_another_gives() -> None:
    arrays = [normal(1, 2, 32, 9, 9), normal(2, 32, 32, 3, 3)]
    ran = check("conv2d", SAME, arrays, [floats(2, 32, 9, 9)])
    assert ran.arrangement.inputs[0] == ran.arrangement.outputs[0]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_of_few_channels_are_plain(channels: int, size: int) -> None:
    x, w, y = normal(1, 2, channels, 9, 9), normal(2, 16, channels, size, size), normal(3, 2, 16, 10 - size, 10 - size)
    geometry = {**SAME, "padding": (0, 0, 0, 0)}
    forward = check("conv2d", geometry, [x, w], [Shaped.of(y)])
    given = {**geometry, "weight_shape": w.shape, "dtype": "float32"}
    backward = check("conv2d_weight_gradient", given, [y, x], [Shaped.of(w)])
    assert forward.arrangement.inputs[0].is_plain
    assert backward.arrangement.inputs[1].is_plain
