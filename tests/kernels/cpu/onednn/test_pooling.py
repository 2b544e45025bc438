"""Layouts of pooling and of the positions of maxima; the table compares the other values."""

from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import Layout, plain
from tests.kernels.cpu.layout_cases import POOLS, slid
from tests.kernels.cpu.onednn.checking import (
    IMAGE_TAGS,
    assert_close,
    check,
    expected,
    floats,
    kernel,
    kernels,
    library,
    normal,
    refused,
)
from tests.kernels.harness import Shaped, run

Ints = tuple[int, ...]


def attributes_of(window: Ints, strides: Ints, padding: Ints, **more: Any) -> dict[str, Any]:
    return {"window": window, "strides": strides, "padding": padding, **more}


@pytest.mark.parametrize("tag", IMAGE_TAGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("geometry", POOLS)
def test_the_gradient_takes_positions_as_the_maximum_gives_them(geometry: Any, dtype: str, tag: str) -> None:
    if dtype not in library().dtypes:
        pytest.skip(f"oneDNN has no {dtype} on this CPU")
    shape, *window = geometry
    pooled = (*shape[:2], *slid(shape, *window))
    x, dy = normal(1, *shape).astype(dtype), normal(2, *pooled).astype(dtype)
    outputs, image = [Shaped.of(dy), Shaped(pooled, "int32")], Shaped.of(x)
    forward = check("max_pool", attributes_of(*window), [x], outputs, [tag], tolerance=0)
    _, argmax = forward.outputs
    attributes = attributes_of(*window, input_shape=shape)
    gradient = kernel("max_pool_gradient")
    offered = list(forward.arrangement.outputs)
    arranged = gradient.arrange(attributes, outputs, [image], offered)
    assert arranged is not None
    assert arranged.inputs == tuple(offered), "nothing is converted"
    ran = run(gradient, attributes, outputs, [image], [dy, argmax], offered, registry=kernels())
    exact = expected("max_pool_gradient", attributes, [dy, argmax], [image])[0]
    assert_close(ran.outputs[0], exact, 1e-5 if dtype == "float32" else 2**-7)
    if dtype == "float32":
        assert forward.tags[0] == ran.tags[1] == [tag]


@pytest.mark.parametrize("tag", IMAGE_TAGS)
def test_plain_positions_are_converted_to_the_layout_of_the_gradient(tag: str) -> None:
    pooled = (2, 20, 4, 4)
    attributes = attributes_of((3, 3), (2, 2), (0, 1, 0, 1), input_shape=(2, 20, 8, 8))
    argmax = np.random.default_rng(3).integers(0, 4, pooled).astype(np.int32)
    ran = check("max_pool_gradient", attributes, [normal(2, *pooled), argmax], [floats(2, 20, 8, 8)], [tag, ""])
    assert ran.tags == ([tag, f"u8:{tag or 'abcd'}"], [tag]), "positions take the layout of the gradient"


def test_the_gradient_takes_the_layout_of_the_positions() -> None:
    pooled = floats(2, 20, 4, 4)
    inputs, offered = [pooled, Shaped(pooled.shape, "int32")], [plain(pooled), Layout("u8:aBcd16b", 1024)]
    attributes = attributes_of((2, 2), (2, 2), (0, 0, 0, 0), input_shape=(2, 20, 8, 8))
    arrangement = kernel("max_pool_gradient").arrange(attributes, inputs, [floats(2, 20, 8, 8)], offered)
    assert arrangement is not None
    assert [each.tag for each in arrangement.inputs] == ["aBcd16b", "u8:aBcd16b"]
    assert arrangement.outputs[0].tag == "aBcd16b"


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
def test_means_over_other_axes_are_refused(axes: Ints) -> None:
    mean = floats(*(extent for axis, extent in enumerate((2, 3, 4, 5)) if axis not in axes))
    assert refused("reduce_mean", {"axes": axes, "keepdims": False}, [floats(2, 3, 4, 5)], [mean])
