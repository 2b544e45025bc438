"""Pooling over layouts, windows that hang over, ties, and positions that others read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import Layout, plain
from tests.kernels.cpu.onednn.checking import (
    IMAGE_TAGS,
    assert_close,
    check,
    expected,
    floats,
    kernel,
    kernels,
    layout,
    normal,
    refused,
)
from tests.kernels.harness import Shaped, run

Ints = tuple[int, ...]

GEOMETRIES = [
    pytest.param(((2, 20, 9, 8), (3, 3), (2, 2), (0, 0, 0, 0)), id="plain"),
    pytest.param(((2, 20, 9, 8), (3, 3), (2, 2), (0, 1, 0, 1)), id="overhanging"),
    pytest.param(((2, 32, 8, 8), (2, 2), (2, 2), (1, 1, 1, 1)), id="padded"),
    pytest.param(((1, 16, 7, 6), (3, 2), (1, 2), (2, 1, 1, 0)), id="asymmetric"),
    pytest.param(((3, 5, 8, 8), (1, 1), (2, 2), (0, 0, 0, 0)), id="subsampling"),
    pytest.param(((1, 16, 20, 20), (17, 17), (3, 3), (0, 0, 0, 0)), id="more than 256 places"),
]


def pooled_shape(shape: Ints, window: Ints, strides: Ints, padding: Ints) -> Ints:
    top, bottom, left, right = padding
    rows = (shape[2] + top + bottom - window[0]) // strides[0] + 1
    return (*shape[:2], rows, (shape[3] + left + right - window[1]) // strides[1] + 1)


def attributes_of(window: Ints, strides: Ints, padding: Ints, **more: Any) -> dict[str, Any]:
    return {"window": window, "strides": strides, "padding": padding, **more}


@pytest.mark.parametrize("tag", IMAGE_TAGS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_maximum_of_each_window_and_its_position(geometry: Any, tag: str) -> None:
    shape, *window = geometry
    pooled = pooled_shape(*geometry)
    x = normal(1, *shape) - 3  # negative, so that padding would win as zero
    ran = check("max_pool", attributes_of(*window), [x], [floats(*pooled), Shaped(pooled, "int32")], [tag])
    assert ran.tags[0] == [tag], "images are taken as they come"


@pytest.mark.parametrize("tag", IMAGE_TAGS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_gradient_of_a_maximum(geometry: Any, tag: str) -> None:
    shape, *window = geometry
    pooled = pooled_shape(*geometry)
    x, dy = normal(1, *shape), normal(2, *pooled)
    outputs = [floats(*pooled), Shaped(pooled, "int32")]
    forward = check("max_pool", attributes_of(*window), [x], outputs, [tag])
    _, argmax = forward.outputs
    attributes = attributes_of(*window, input_shape=shape)
    gradient = kernel("max_pool_gradient")
    offered = [layout(floats(*pooled), tag), forward.arrangement.outputs[1]]
    arranged = gradient.arrange(attributes, outputs, [floats(*shape)], offered)
    assert arranged is not None
    assert arranged.inputs == tuple(offered), "nothing is converted"
    ran = run(gradient, attributes, outputs, [floats(*shape)], [dy, argmax], offered, registry=kernels())
    assert_close(ran.outputs[0], expected("max_pool_gradient", attributes, [dy, argmax], [floats(*shape)])[0])
    assert ran.tags[1] == [tag]


@pytest.mark.parametrize("tag", IMAGE_TAGS)
def test_positions_from_elsewhere_are_good_for_the_gradient(tag: str) -> None:
    pooled = (2, 20, 4, 4)
    attributes = attributes_of((3, 3), (2, 2), (0, 1, 0, 1), input_shape=(2, 20, 8, 8))
    argmax = np.random.default_rng(3).integers(0, 4, pooled).astype(np.int32)
    ran = check("max_pool_gradient", attributes, [normal(2, *pooled), argmax], [floats(2, 20, 8, 8)], [tag, ""])
    assert ran.tags == ([tag, f"u8:{tag or 'abcd'}"], [tag]), "positions follow the gradient"


def test_the_gradient_of_a_maximum_lies_as_the_positions_do() -> None:
    pooled = floats(2, 20, 4, 4)
    inputs, offered = [pooled, Shaped(pooled.shape, "int32")], [plain(pooled), Layout("u8:aBcd16b", 1024)]
    attributes = attributes_of((2, 2), (2, 2), (0, 0, 0, 0), input_shape=(2, 20, 8, 8))
    arrangement = kernel("max_pool_gradient").arrange(attributes, inputs, [floats(2, 20, 8, 8)], offered)
    assert arrangement is not None
    assert [each.tag for each in arrangement.inputs] == ["aBcd16b", "u8:aBcd16b"]
    assert arrangement.outputs[0].tag == "aBcd16b"


@pytest.mark.parametrize("tag", IMAGE_TAGS)
def test_the_first_of_equal_values_in_the_image_wins_over_padding(tag: str) -> None:
    x = np.zeros((1, 16, 2, 2), np.float32)
    outputs = [floats(1, 16, 2, 2), Shaped((1, 16, 2, 2), "int32")]
    ran = check("max_pool", attributes_of((2, 2), (2, 2), (1, 1, 1, 1)), [x], outputs, [tag])
    assert ran.outputs[1][0, 0].ravel().tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("tag", IMAGE_TAGS)
@pytest.mark.parametrize("count_padding", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_mean_of_each_window_and_its_gradient(geometry: Any, count_padding: bool, tag: str) -> None:
    shape, *window = geometry
    pooled = pooled_shape(*geometry)
    attributes = attributes_of(*window, count_padding=count_padding)
    forward = check("avg_pool", attributes, [normal(1, *shape)], [floats(*pooled)], [tag])
    attributes["input_shape"] = shape
    backward = check("avg_pool_gradient", attributes, [normal(2, *pooled)], [floats(*shape)], [tag])
    assert forward.tags == backward.tags == ([tag], [tag])


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    ("shape", "tag", "taken"),
    [
        ((3, 32, 7, 5), "", ""),
        ((3, 32, 7, 5), "aBcd16b", "aBcd16b"),
        ((3, 24, 7, 5), "aBcd8b", "aBcd8b"),
        ((3, 20, 7, 5), "acdb", "acdb"),
        ((3, 20, 7, 5), "aBcd16b", ""),
    ],
)
def test_the_mean_over_images_is_plain(shape: Ints, tag: str, taken: str, keepdims: bool) -> None:
    mean = floats(*shape[:2], 1, 1) if keepdims else floats(*shape[:2])
    ran = check("reduce_mean", {"axes": (2, 3), "keepdims": keepdims}, [normal(1, *shape)], [mean], [tag])
    assert ran.tags == ([taken], [""])


@pytest.mark.parametrize("axes", [(0, 2, 3), (2,), (1, 2)])
def test_other_means_are_left_to_others(axes: Ints) -> None:
    mean = floats(*(extent for axis, extent in enumerate((2, 3, 4, 5)) if axis not in axes))
    assert refused("reduce_mean", {"axes": axes, "keepdims": False}, [floats(2, 3, 4, 5)], [mean])
