"""Batch normalization: layouts, NaN before a ReLU, and the mask of the ReLU; the table compares the other values."""

import numpy as np
import pytest

from runner.kernels.contract import Array, plain
from runner.kernels.cpu.onednn.memory import BITS
from tests.kernels.cpu.onednn.checking import (
    IMAGE_TAGS,
    assert_close,
    assert_padding_is_zero,
    check,
    expected,
    floats,
    kernel,
    kernels,
    layout,
    normal,
)
from tests.kernels.harness import Ran, Shaped, run

EPSILON = {"epsilon": 1e-3}
SHAPES = [(4, 20, 5, 6), (2, 32, 3, 3), (1, 3, 7, 7), (6, 48, 1, 1)]
IMAGES = [
    pytest.param(shape, tag, id=f"{shape} {tag}") for shape in SHAPES for tag in IMAGE_TAGS if shape[2:] != (1, 1)
]
CASES = [
    *IMAGES,
    pytest.param((6, 48, 1, 1), "aBcd16b", id="one pixel"),
    pytest.param((8, 10), "", id="rank 2"),
    pytest.param((8, 32), "", id="rank 2, whole vectors"),
    pytest.param((7, 1), "", id="one channel"),
]


def _inputs(shape: tuple[int, ...]) -> list[Array]:
    """x away from zero mean, gamma, beta."""
    channels = shape[1]
    return [2 * normal(1, *shape) + 1, normal(2, channels), 0.1 * normal(3, channels)]


@pytest.mark.parametrize(("tag", "dy_tag"), [("aBcd16b", ""), ("aBcd16b", "acdb"), ("", "aBcd16b")])
def test_the_gradient_converts_dy_to_the_layout_of_x(tag: str, dy_tag: str) -> None:
    x, gamma, _ = _inputs(shape := (4, 20, 5, 6))
    arrays = [x, gamma, x.mean((0, 2, 3)), x.var((0, 2, 3)), normal(6, *shape)]
    outputs = [floats(*shape), *[floats(shape[1])] * 2]
    ran = check("batch_norm_gradient", EPSILON, arrays, outputs, [tag, "", "", "", dy_tag])
    assert ran.tags == ([tag, "", "", "", tag], [tag, "", ""])


@pytest.mark.parametrize(("shape", "tag"), CASES)
def test_images_keep_their_layout(shape: tuple[int, ...], tag: str) -> None:
    x, vector = floats(*shape), floats(shape[1])
    for op, vectors, results in (("batch_norm", 2, 2), ("batch_norm_inference", 4, 0)):
        offered = [layout(x, tag), *[plain(vector)] * vectors]
        found = kernel(op).arrange(EPSILON, [x, *[vector] * vectors], [x, *[vector] * results], offered)
        assert found is not None
        assert found.inputs[0] == found.outputs[0] == layout(x, tag)


def _with_relu(shape: tuple[int, ...], tag: str, arrays: list[Array] | None = None) -> Ran:
    vector = floats(shape[1])
    outputs = [floats(*shape), vector, vector, Shaped(shape, "bool")]
    arrays = arrays or _inputs(shape)
    offered = [layout(Shaped.of(array), each) for array, each in zip(arrays, [tag, "", ""], strict=True)]
    inputs = [Shaped.of(array) for array in arrays]
    return run(kernel("batch_norm_relu"), EPSILON, inputs, outputs, arrays, offered, registry=kernels())


@pytest.mark.parametrize(("shape", "tag"), CASES)
def test_with_relu(shape: tuple[int, ...], tag: str) -> None:
    ran = _with_relu(shape, tag)
    specs = [operand.spec for operand in ran.outputs_in_memory]
    y, mean, variance, _ = expected("batch_norm_relu", EPSILON, _inputs(shape), specs)
    for came, wanted in zip(ran.outputs[:3], (y, mean, variance), strict=True):
        assert_close(came, wanted)
    np.testing.assert_array_equal(ran.outputs[3], ran.outputs[0] > 0)
    assert 0 < ran.outputs[3].sum() < y.size, "ReLU lets some values through"
    assert_padding_is_zero(ran.outputs_in_memory[0])


@pytest.mark.parametrize("broken", [0, 1, 2], ids=["x", "gamma", "beta"])
@pytest.mark.parametrize(("shape", "tag"), CASES)
def test_nan_passes_the_relu(shape: tuple[int, ...], tag: str, broken: int) -> None:
    arrays = _inputs(shape)
    arrays[broken].flat[-1] = np.nan
    ran = _with_relu(shape, tag, arrays)
    assert np.isnan(ran.outputs[0]).all()
    wanted = expected("batch_norm_relu", EPSILON, arrays, [operand.spec for operand in ran.outputs_in_memory])
    assert np.isnan(wanted[0])[:, -1].all()


@pytest.mark.parametrize(("shape", "tag"), CASES)
def test_nan_of_a_mean_that_overflows_passes_the_relu(shape: tuple[int, ...], tag: str) -> None:
    arrays = _inputs(shape)
    arrays[0][:, 0] = 3e38
    with np.errstate(all="ignore"):  # as in every step
        y = _with_relu(shape, tag, arrays).outputs[0]
    assert np.isnan(y[:, 0]).all()


def test_relu_of_infinity_is_not_nan() -> None:
    arrays = _inputs((4, 20, 5, 6))
    arrays[2][3] = np.inf
    with np.errstate(all="ignore"):  # as in every step
        y = _with_relu((4, 20, 5, 6), "", arrays).outputs[0]
    assert np.isposinf(y[:, 3]).all()
    assert np.isfinite(y[:, :3]).all()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("shape", "tag"), CASES)
def test_the_gradient_with_relu(shape: tuple[int, ...], tag: str, in_place: bool) -> None:
    forward = _with_relu(shape, tag)
    _, mean, variance, mask = forward.outputs
    x, gamma, _ = _inputs(shape)
    arrays = [x, gamma, mean, variance, mask, normal(6, *shape)]
    inputs, outputs = [Shaped.of(array) for array in arrays], [floats(*shape), *[floats(shape[1])] * 2]
    image, kept = forward.arrangement.inputs[0], forward.outputs_in_memory[3]
    offered = [image, *map(plain, inputs[1:4]), kept.layout, image]
    values = [*arrays[:4], kept, arrays[5]]
    gradient = kernel("batch_norm_relu_gradient")
    ran = run(gradient, EPSILON, inputs, outputs, values, offered, registry=kernels(), in_place=in_place)
    assert ran.arrangement.inputs == tuple(offered), "nothing is converted"
    for came, wanted in zip(ran.outputs, expected("batch_norm_relu_gradient", EPSILON, arrays, outputs), strict=True):
        assert_close(came, wanted)
    assert_padding_is_zero(ran.outputs_in_memory[0])


def test_a_plain_mask_is_refused_if_masks_are_bits_and_converted_if_they_are_bytes() -> None:
    """oneDNN stores bits with AVX-512 and bytes without it."""
    shape = (2, 16, 3, 3)
    forward = _with_relu(shape, "aBcd16b")
    _, mean, variance, mask = forward.outputs
    x, gamma, _ = _inputs(shape)
    arrays = [x, gamma, mean, variance, mask, normal(6, *shape)]
    inputs, outputs = [Shaped.of(array) for array in arrays], [floats(*shape), *[floats(shape[1])] * 2]
    offered = [layout(inputs[0], "aBcd16b"), *map(plain, inputs[1:])]
    gradient, kept = kernel("batch_norm_relu_gradient"), forward.arrangement.outputs[3]
    if kept.tag.startswith(BITS):
        assert gradient.arrange(EPSILON, inputs, outputs, offered) is None
        return
    ran = run(gradient, EPSILON, inputs, outputs, arrays, offered, registry=kernels())
    assert ran.arrangement.inputs[4] == kept
    for came, wanted in zip(ran.outputs, expected("batch_norm_relu_gradient", EPSILON, arrays, outputs), strict=True):
        assert_close(came, wanted)
