"""Convolution of our own on a GPU against the reference kernels: alone, with what follows it, and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import plain
from runner.kernels.gpu import convolution, fused_convolution
from runner.kernels.gpu.convolution import Geometry
from runner.kernels.gpu.layouts import CHANNELS_LAST, channels_last
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import DTYPES, Array, drawn, reference, registry_of, require_close, run_op
from tests.kernels.harness import Shaped
from tests.op_cases import CASES

OPS = (
    "conv2d",
    "conv2d_input_gradient",
    "conv2d_weight_gradient",
    "conv2d_fused",
    "conv2d_weight_bias_gradient",
)
TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 2**-7}


def _check(
    runtime: EmulatedRuntime, op: str, inputs: list[Array], attributes: dict[str, Any], layouts: Any, **more: Any
) -> None:
    registry = registry_of(runtime, convolution, fused_convolution)
    found = run_op(runtime, op, inputs, attributes, layouts, registry=registry, **more)
    require_close(found, reference(op, inputs, attributes), TOLERANCE[inputs[0].dtype.name])


@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_table(runtime: EmulatedRuntime, dtype: str, layouts: str | None) -> None:
    for op in OPS:
        # The four combinations of bias, residual and ReLU that are left out differ in the last lines of the kernel.
        for case in CASES[op] if dtype == "float32" else CASES[op][-3:]:
            _check(runtime, op, *drawn(case, dtype), layouts)


GEOMETRY = {"strides": (2, 1), "padding": (1, 2, 2, 1), "groups": 1}
X, W, Y = (15, 10, 9, 8), (70, 10, 3, 3), (15, 70, 5, 9)
"""More than one tile of pixels, of outputs, and of taps for the gradient of the filters; and parts of tiles."""


def _drawn(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(3)
    return [(0.1 * rng.standard_normal(shape)).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
def test_many_tiles(runtime: EmulatedRuntime, layouts: str | None) -> None:
    geometry = Geometry(GEOMETRY, X, W, Y, channels_last=False)
    assert geometry.splits(runtime.multiprocessors)[0] > 1
    _check(runtime, "conv2d", _drawn(X, W), GEOMETRY, layouts)
    weights = {**GEOMETRY, "weight_shape": W, "dtype": "float32"}
    _check(runtime, "conv2d_weight_bias_gradient", _drawn(Y, X), weights, layouts)
    many_channels = (2, 70, 9, 8)
    filters = (10, 70, 3, 3)
    back = {**GEOMETRY, "input_shape": many_channels}
    _check(runtime, "conv2d_input_gradient", _drawn((2, 10, 5, 9), filters), back, layouts)


def test_either_order_of_threads_gives_the_same(either_order: EmulatedRuntime) -> None:
    for op in ("conv2d", "conv2d_input_gradient", "conv2d_weight_bias_gradient"):
        _check(either_order, op, *drawn(CASES[op][1], "float32"), CHANNELS_LAST)


def test_in_the_place_of_the_residual(runtime: EmulatedRuntime) -> None:
    _check(runtime, "conv2d_fused", *drawn(CASES["conv2d_fused"][-1], "float32"), CHANNELS_LAST, in_place=True)


def test_one_layout_that_is_offered_is_taken_by_all(runtime: EmulatedRuntime) -> None:
    inputs, attributes = drawn(CASES["conv2d"][0], "float32")
    x, w = (Shaped.of(array) for array in inputs)
    y = Shaped((2, 4, 3, 8), "float32")
    kernel = registry_of(runtime, convolution).find("conv2d", "gpu", "cuda")
    for offered in ([channels_last(x), None], [plain(x), channels_last(w)]):
        arrangement = kernel.arrange(attributes, [x, w], [y], offered)
        assert arrangement is not None
        assert {each.tag for each in (*arrangement.inputs, *arrangement.outputs)} == {CHANNELS_LAST}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradients_of_narrow_images_in_another_dtype(runtime: EmulatedRuntime, dtype: str) -> None:
    inputs, attributes = drawn(CASES["conv2d_weight_bias_gradient"][0], "bfloat16")
    _check(runtime, "conv2d_weight_bias_gradient", inputs, {**attributes, "dtype": dtype}, CHANNELS_LAST)


@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
def test_no_examples_and_windows_larger_than_images(runtime: EmulatedRuntime, layouts: str | None) -> None:
    for x, w, y, padding in [
        ((0, 2, 4, 4), (3, 2, 3, 3), (0, 3, 2, 2), (0, 0, 0, 0)),
        ((2, 2, 1, 1), (3, 2, 3, 3), (2, 3, 1, 1), (1, 1, 1, 1)),
    ]:
        geometry = {"strides": (1, 1), "padding": padding, "groups": 1}
        _check(runtime, "conv2d", _drawn(x, w), geometry, layouts)
        _check(runtime, "conv2d_input_gradient", _drawn(y, w), {**geometry, "input_shape": x}, layouts)
        weights = {**geometry, "weight_shape": w, "dtype": "float32"}
        _check(runtime, "conv2d_weight_bias_gradient", _drawn(y, x), weights, layouts)


def test_what_is_no_number_passes_the_relu(runtime: EmulatedRuntime) -> None:
    x, w = np.array([[[[np.nan, -1.0, 2.0]]]], np.float32), np.ones((1, 1, 1, 1), np.float32)
    geometry = {"strides": (1, 1), "padding": (0, 0, 0, 0), "groups": 1}
    fusion = {"bias": False, "residual": False, "relu": True}
    _check(runtime, "conv2d_fused", [x, w], {**geometry, **fusion}, None)
