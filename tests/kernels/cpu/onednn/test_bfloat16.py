"""Kernels in bfloat16: images in half the bytes, statistics and scales in float32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from runner.kernels.contract import Array, plain
from tests.kernels.cpu.onednn.checking import assert_close, check, expected, kernel, kernels, layout, normal, refused
from tests.kernels.harness import Shaped, run

TOLERANCE = 2**-7
"""Two units in the last place of the largest magnitude."""

EXACT = 1e-5
"""Of what is summed in float32 and given as such: products of bfloat16 are exact in it."""

SHAPE = (2, 32, 6, 6)
WEIGHT_GRADIENTS = pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", TOLERANCE), ("float32", EXACT)])
TAGS = pytest.mark.parametrize("tag", ["", "aBcd16b", "acdb"])


_IMAGE, _PIXELS = Shaped(SHAPE, "bfloat16"), {"axes": (2, 3), "keepdims": False}
pytestmark = pytest.mark.skipif(
    refused("reduce_mean", _PIXELS, [_IMAGE], [Shaped((2, 32), "bfloat16")]),
    reason="oneDNN has no bfloat16 on this CPU",
)


def _half(seed: int, *shape: int) -> Array:
    return normal(seed, *shape).astype(ml_dtypes.bfloat16)


def _halves(*shape: int) -> Shaped:
    return Shaped(shape, "bfloat16")


@TAGS
@pytest.mark.parametrize(
    ("op", "attributes", "shapes", "result"),
    [
        ("max_pool", {}, [SHAPE], (2, 32, 3, 3)),
        ("avg_pool", {"count_padding": False}, [SHAPE], (2, 32, 3, 3)),
        ("avg_pool_gradient", {"count_padding": False, "input_shape": SHAPE}, [(2, 32, 3, 3)], SHAPE),
    ],
)
def test_pooling(op: str, attributes: dict[str, Any], shapes: list[Any], result: tuple[int, ...], tag: str) -> None:
    window = {"window": (3, 3), "strides": (2, 2), "padding": (0, 1, 0, 1)}
    positions = [Shaped(result, "int32")] if op == "max_pool" else []
    arrays = [_half(1, *shape) for shape in shapes]
    check(op, {**window, **attributes}, arrays, [_halves(*result), *positions], [tag], tolerance=TOLERANCE)


@TAGS
def test_a_maximum_and_its_gradient_whose_positions_no_byte_holds(tag: str) -> None:
    window = {"window": (16, 16), "strides": (3, 3), "padding": (0, 0, 0, 0)}
    x, dy, positions = _half(1, 2, 20, 25, 25), _half(2, 2, 20, 4, 4), Shaped((2, 20, 4, 4), "int32")
    forward = check("max_pool", window, [x], [Shaped.of(dy), positions], [tag], tolerance=0)
    gradient = {**window, "input_shape": x.shape}
    tags = [tag, tag]
    check("max_pool_gradient", gradient, [dy, forward.outputs[1]], [Shaped.of(x)], tags, tolerance=TOLERANCE)


@TAGS
def test_the_gradient_of_a_maximum(tag: str) -> None:
    argmax = np.random.default_rng(1).integers(0, 4, (2, 32, 3, 3)).astype(np.int32)
    attributes = {"window": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0), "input_shape": SHAPE}
    arrays = [_half(2, 2, 32, 3, 3), argmax]
    check("max_pool_gradient", attributes, arrays, [_halves(*SHAPE)], [tag, ""], tolerance=0)


@TAGS
def test_batch_normalization(tag: str) -> None:
    x, gamma, beta, dy = _half(1, *SHAPE), normal(2, 32), normal(3, 32), _half(4, *SHAPE)
    mean, variance = (x.astype(np.float32).mean((0, 2, 3)), x.astype(np.float32).var((0, 2, 3)))
    vector, image = Shaped((32,), "float32"), _halves(*SHAPE)
    epsilon = {"epsilon": 1e-3}
    outputs = [image, vector, vector]
    check("batch_norm", epsilon, [x, gamma, beta], outputs, [tag, "", ""], tolerance=TOLERANCE)
    arrays = [x, gamma, beta, mean, variance]
    check("batch_norm_inference", epsilon, arrays, [image], [tag, *[""] * 4], tolerance=TOLERANCE)
    arrays = [x, gamma, mean, variance, dy]
    check("batch_norm_gradient", epsilon, arrays, outputs, [tag, "", "", "", tag], tolerance=TOLERANCE)


@TAGS
def test_local_response_normalization(tag: str) -> None:
    setting = {"size": 5, "alpha": 0.1, "beta": 0.75, "k": 2.0, "divide_by_size": False}
    arrays = [_half(1, *SHAPE), _half(2, *SHAPE)]
    op = "local_response_normalization"
    check(op, setting, arrays[:1], [_halves(*SHAPE)], [tag], tolerance=TOLERANCE)
    check(f"{op}_gradient", setting, arrays, [_halves(*SHAPE)], [tag, tag], tolerance=TOLERANCE)


@TAGS
def test_batch_normalization_with_relu(tag: str) -> None:
    x, gamma, beta, dy = _half(1, *SHAPE), normal(2, 32), normal(3, 32), _half(4, *SHAPE)
    vector, image, epsilon = Shaped((32,), "float32"), _halves(*SHAPE), {"epsilon": 1e-3}
    offered = [layout(image, tag), plain(vector), plain(vector)]
    outputs = [image, vector, vector, Shaped(SHAPE, "bool")]
    forward = run(
        kernel("batch_norm_relu"),
        epsilon,
        [image, vector, vector],
        outputs,
        [x, gamma, beta],
        offered,
        registry=kernels(),
    )
    y, mean, variance, mask = forward.outputs
    wanted = expected("batch_norm_relu", epsilon, [x, gamma, beta], outputs)
    for came, exact in zip((y, mean, variance), wanted, strict=False):
        assert_close(came, exact, TOLERANCE)
    np.testing.assert_array_equal(mask, y > 0)
    inputs = [image, vector, vector, vector, outputs[3], image]
    lie = [offered[0], *[plain(vector)] * 3, forward.outputs_in_memory[3].layout, offered[0]]
    values = [x, gamma, mean, variance, forward.outputs_in_memory[3], dy]
    results = [image, vector, vector]
    ran = run(kernel("batch_norm_relu_gradient"), epsilon, inputs, results, values, lie, registry=kernels())
    arrays = [x, gamma, mean, variance, mask, dy]
    for came, exact in zip(ran.outputs, expected("batch_norm_relu_gradient", epsilon, arrays, results), strict=True):
        assert_close(came, exact, TOLERANCE)


@TAGS
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(tag: str, groups: int) -> None:
    filters = (48, 32 // groups, 3, 3)
    x, w, bias, dy = _half(1, *SHAPE), _half(2, *filters) / 16, _half(3, 48), _half(4, 2, 48, 6, 6)
    geometry = {"strides": (1, 1), "padding": (1, 1, 1, 1), "groups": groups}
    y = [_halves(2, 48, 6, 6)]
    check("conv2d", geometry, [x, w], y, [tag, ""], tolerance=TOLERANCE)
    fused = {**geometry, "bias": True, "residual": True, "relu": True}
    for vector in (bias, bias.astype(np.float32)):
        check("conv2d_fused", fused, [x, w, vector, dy], y, [tag, "", "", tag], tolerance=TOLERANCE)
    to_x = {**geometry, "input_shape": SHAPE}
    check("conv2d_input_gradient", to_x, [dy, w], [_halves(*SHAPE)], [tag, ""], tolerance=TOLERANCE)


@TAGS
@pytest.mark.parametrize("groups", [1, 2])
@WEIGHT_GRADIENTS
def test_weight_gradients_of_a_convolution(tag: str, groups: int, dtype: str, tolerance: float) -> None:
    x, dy, filters = _half(1, *SHAPE), _half(4, 2, 48, 6, 6), (48, 32 // groups, 3, 3)
    geometry = {"strides": (1, 1), "padding": (1, 1, 1, 1), "groups": groups}
    attributes = {**geometry, "weight_shape": filters, "dtype": dtype}
    dw, db = Shaped(filters, dtype), Shaped((48,), dtype)
    check("conv2d_weight_gradient", attributes, [dy, x], [dw], [tag, tag], tolerance=tolerance)
    check("conv2d_weight_bias_gradient", attributes, [dy, x], [dw, db], [tag, tag], tolerance=tolerance)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(7, 33, 17), (3, 131, 1001), (33, 257, 517)])
def test_a_dense_layer(rows: int, inner: int, columns: int) -> None:
    x, w, dy = _half(1, rows, inner), _half(2, inner, columns), _half(3, rows, columns)
    forward = {"transpose_a": False, "transpose_b": False}
    check("matmul", forward, [x, w], [_halves(rows, columns)], tolerance=TOLERANCE)
    backward = {"transpose_a": False, "transpose_b": True}
    check("matmul", backward, [dy, w], [_halves(rows, inner)], tolerance=TOLERANCE)
    for dtype in ("bfloat16", "float32"):
        fused = {**forward, "bias": True, "relu": True, "dtype": dtype}
        y, tolerance = [Shaped((rows, columns), dtype)], TOLERANCE if dtype == "bfloat16" else EXACT
        check("matmul_fused", fused, [x, w, _half(4, columns)], y, tolerance=tolerance)


@WEIGHT_GRADIENTS
def test_weight_gradients_of_a_dense_layer(dtype: str, tolerance: float) -> None:
    x, dy = _half(1, 33, 257), _half(2, 33, 517)
    dw, db = Shaped((257, 517), dtype), Shaped((517,), dtype)
    check("matmul_bias_gradient", {"dtype": dtype}, [x, dy], [dw, db], tolerance=tolerance)
    alone = {"transpose_a": True, "transpose_b": False, "bias": False, "relu": False, "dtype": dtype}
    check("matmul_fused", alone, [x, dy], [dw], tolerance=tolerance)


@TAGS
def test_parts(tag: str) -> None:
    x = _half(1, *SHAPE)
    halves = [_halves(2, 16, 6, 6)] * 2
    check("split", {"axis": 1, "sizes": (16, 16)}, [x], halves, [tag], tolerance=0)
    check("concat", {"axis": 1}, [x, x], [_halves(2, 64, 6, 6)], [tag, tag], tolerance=0)
    check("reduce_mean", {"axes": (2, 3), "keepdims": False}, [x], [_halves(2, 32)], [tag], tolerance=TOLERANCE)
