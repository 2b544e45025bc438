"""Layouts of the inputs and outputs of oneDNN kernels, the values in them, and unsupported nodes."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import Array, Layout, plain
from runner.kernels.cpu.onednn import convolution
from runner.kernels.cpu.onednn.convolution import preferred_layout
from runner.kernels.cpu.onednn.recipe import Node
from tests.kernels.cpu.layout_cases import POOLS, slid
from tests.kernels.cpu.onednn.checking import (
    IMAGE_TAGS,
    TOLERANCE,
    assert_close,
    check,
    floats,
    kernel,
    kernels,
    layout,
    library,
    normal,
)
from tests.kernels.harness import Shaped, arranged, exact, run_node

Ints = tuple[int, ...]

BLOCKS = "aBcd16b"
EXACT = ("concat", "split", "slice", "pad", "broadcast_to")
"""Ops without arithmetic, whose results are exact."""

RESPONSE = {"size": 5, "alpha": 0.1, "beta": 0.75, "k": 2.0, "divide_by_size": False}
GRADIENT_OF_RESPONSE = "local_response_normalization_gradient"
EPSILON = {"epsilon": 1e-3}
MATRICES = {"transpose_a": False, "transpose_b": False}
WINDOWS = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}


def attributes_of(window: Ints, strides: Ints, padding: Ints, **more: Any) -> dict[str, Any]:
    return {"window": window, "strides": strides, "padding": padding, **more}


# Op, attributes, inputs (arrays or shapes), offered tags, chosen tags of the inputs, tags of the outputs.
PARTS = [
    *(
        ("concat", {"axis": 1}, [(2, each, 5, 6) for each in channels], tags, tags, [joined])
        for channels, tags, joined in (
            ((32, 16, 48), [BLOCKS] * 3, BLOCKS),
            ((32, 16, 20), [BLOCKS] * 3, BLOCKS),  # only the last block is partly filled
            ((20, 32, 16), [BLOCKS] * 3, ""),  # the second input would start inside a block
            ((32, 16, 64), ["", "aBcd8b", BLOCKS], BLOCKS),
            ((24, 40, 8), ["aBcd8b", "aBcd8b", ""], "aBcd8b"),
            ((7, 5, 12), ["acdb", "acdb", BLOCKS], ""),
            ((7, 12, 5), ["acdb", "acdb", ""], "acdb"),
            ((7, 12, 5), ["", "", ""], ""),
            ((32,), [BLOCKS], BLOCKS),
        )
    ),
    *(("concat", {"axis": rank - 1}, [(3,) * rank] * 2, ["", ""], ["", ""], [""]) for rank in (1, 2, 3, 5, 7)),
    *(
        row
        for tag in ("", BLOCKS, "acdb")
        for axis in (0, 2, 3)
        for row in (
            ("concat", {"axis": axis}, [(3, 20, 3, 3)] * 2, [tag] * 2, [tag] * 2, [tag]),
            ("split", {"axis": axis, "sizes": (1, 3, 2)}, [(6, 20, 6, 6)], [tag], [tag], [tag] * 3),
        )
    ),
    *(
        ("split", {"axis": 1, "sizes": sizes}, [(2, sum(sizes), 5, 6)], [tag], [taken], [taken] * len(sizes))
        for sizes, tag, taken in (
            ((32, 16, 48), BLOCKS, BLOCKS),
            ((32, 16, 20), BLOCKS, BLOCKS),
            ((20, 32, 16), BLOCKS, ""),
            ((24, 40, 8), "aBcd8b", "aBcd8b"),
            ((7, 5, 12), "acdb", "acdb"),
            ((7, 5, 12), "", ""),
            ((20,), BLOCKS, BLOCKS),
        )
    ),
    *(
        ("slice", {"begin": begin, "size": size, "steps": (1,) * len(begin)}, [shape], [tag], [taken], [taken])
        for shape, begin, size, tag, taken in (
            ((2, 52, 5, 6), (0, 16, 1, 2), (2, 32, 3, 4), BLOCKS, BLOCKS),
            ((2, 52, 5, 6), (1, 32, 0, 0), (1, 20, 5, 6), BLOCKS, BLOCKS),  # to the end of the axis
            ((2, 52, 5, 6), (0, 16, 0, 0), (2, 20, 5, 6), BLOCKS, ""),
            ((2, 52, 5, 6), (0, 8, 0, 0), (2, 16, 5, 6), BLOCKS, ""),
            ((2, 52, 5, 6), (1, 3, 1, 2), (1, 4, 2, 3), "acdb", "acdb"),
            ((2, 52, 5, 6), (1, 3, 1, 2), (1, 4, 2, 3), "", ""),
            ((4, 6), (1, 2), (2, 3), "", ""),
        )
    ),
    *(
        ("pad", {"low": low, "high": high}, [shape], [tag], [taken], [taken])
        for shape, low, high, tag, taken in (
            ((2, 16, 3, 4), (0, 0, 0, 0), (0, 16, 0, 0), BLOCKS, BLOCKS),
            ((2, 16, 3, 4), (0, 16, 1, 0), (0, 3, 2, 1), BLOCKS, BLOCKS),
            ((2, 20, 3, 4), (0, 16, 1, 2), (1, 0, 0, 0), BLOCKS, BLOCKS),
            ((2, 20, 3, 4), (0, 0, 0, 0), (0, 1, 0, 0), BLOCKS, ""),
            ((2, 16, 3, 4), (0, 8, 0, 0), (0, 8, 0, 0), BLOCKS, ""),
            ((2, 5, 3, 4), (0, 2, 0, 1), (1, 1, 0, 0), "acdb", "acdb"),
            ((2, 5, 3, 4), (0, 2, 0, 1), (1, 1, 0, 0), "", ""),
            ((2, 3, 4), (1, 0, 2), (0, 1, 0), "", ""),
        )
    ),
    # Images of one pixel or one channel are plain even if their channels are last.
    *(
        ("pad", {"low": low, "high": (0, 1, 2, 3)}, [shape], ["acdb"], [""], ["acdb"])
        for shape, low in (((2, 5, 1, 1), (0, 0, 1, 0)), ((2, 1, 3, 4), (0, 2, 0, 1)))
    ),
    ("concat", {"axis": 1}, [(2, 1, 3, 4)] * 2, ["acdb"] * 2, [""] * 2, ["acdb"]),
    ("split", {"axis": 0, "sizes": (5,)}, [(5,)], [""], [""], [""]),
    ("split", {"axis": 6, "sizes": (1, 2)}, [(2, 1, 2, 1, 2, 1, 3)], [""], [""], ["", ""]),
]
IMAGES = [
    *(
        (
            "avg_pool_gradient",
            attributes_of((3, 3), (1, 1), (0, 0, 0, 0), input_shape=(2, channels, 3, 3), count_padding=True),
            *([(2, channels, 1, 1)], ["acdb"], [""], ["acdb"]),
        )
        for channels in (20, 32)
    ),
    *(
        ("reduce_mean", {"axes": (2, 3), "keepdims": keep}, [shape], [tag], [taken], [""])
        for keep in (False, True)
        for shape, tag, taken in (
            ((3, 32, 7, 5), "", ""),
            ((3, 32, 7, 5), BLOCKS, BLOCKS),
            ((3, 24, 7, 5), "aBcd8b", "aBcd8b"),
            ((3, 20, 7, 5), "acdb", "acdb"),
            ((3, 20, 7, 5), BLOCKS, ""),
        )
    ),
    # Only functions that map zero to zero accept partly filled blocks, because the padding must stay zero.
    *(
        (op, {}, [shape], [tag], [taken], [taken])
        for op, padded in (("exp", ""), ("sigmoid", ""), ("tanh", BLOCKS))
        for shape, tag, taken in (
            *(((2, 32, 5, 3), tag, tag) for tag in ("", "acdb", BLOCKS)),
            ((2, 20, 5, 3), BLOCKS, padded),
        )
    ),
]
NORMALISED = [
    pytest.param(shape, tag, id=f"{shape} {tag}")
    for shape, tags in (
        *((shape, IMAGE_TAGS) for shape in ((4, 20, 5, 6), (2, 32, 3, 3), (1, 3, 7, 7))),
        *(((6, 48, 1, 1), (BLOCKS,)), ((8, 10), ("",)), ((8, 32), ("",)), ((7, 1), ("",))),
    )
    for tag in tags
]
"""Shapes and tags of images (N, C, H, W) and matrices (N, C) that batch normalization normalizes without conversion."""

POSITIVE = np.abs(normal(3, 20))
OTHERS = [
    *(
        (op, EPSILON, [shape, *vectors], tags, tags, [tag, *[""] * results])
        for shape, tag in (each.values for each in NORMALISED)
        for channels in [shape[1:2]]
        for op, vectors, results in (
            ("batch_norm", [channels] * 2, 2),
            ("batch_norm_inference", [*[channels] * 3, np.abs(normal(3, *channels))], 0),
        )
        for tags in [[tag, *[""] * len(vectors)]]
    ),
    # A gradient converts dy to the layout of x.
    *(
        ("batch_norm_gradient", EPSILON, inputs, [tag, "", "", "", dy], [tag, "", "", "", tag], [tag, "", ""])
        for inputs in [[(4, 20, 5, 6), (20,), (20,), POSITIVE, (4, 20, 5, 6)]]
        for tag, dy in ((BLOCKS, ""), (BLOCKS, "acdb"), ("", BLOCKS))
    ),
    (GRADIENT_OF_RESPONSE, RESPONSE, [(2, 32, 3, 3)] * 2, [BLOCKS, ""], [BLOCKS] * 2, [BLOCKS]),
    # Weights in another layout are converted to the plain layout.
    *(
        ("matmul", MATRICES, [(m, k), (k, n)], ["", tag], ["", ""], [""])
        for m, k, n in ((7, 33, 17), (33, 257, 517))
        for tag in ("t:AB16b32a", "t:ab", "ba")
    ),
]


@pytest.mark.parametrize(("op", "attributes", "inputs", "offered", "taken", "given"), [*PARTS, *IMAGES, *OTHERS])
def test_a_kernel_has_the_expected_layouts_and_values(
    op: str, attributes: dict[str, Any], inputs: list[Any], offered: list[str], taken: list[str], given: list[str]
) -> None:
    arrays = [each if isinstance(each, np.ndarray) else normal(1 + k, *each) for k, each in enumerate(inputs)]
    ran = check(op, attributes, arrays, offered, tolerance=0.0 if op in EXACT else TOLERANCE)
    assert ran.tags == (taken, given)


def test_integers_are_concatenated() -> None:
    arrays = [np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(4, dtype=np.int32).reshape(2, 2)]
    check("concat", {"axis": 1}, arrays)


@pytest.mark.parametrize("channels", [16, 20, 64])
def test_pixels_become_images_in_the_layout_of_convolutions(channels: int) -> None:
    images = (3, channels, 5, 6)
    convolved = check("conv2d", WINDOWS, [normal(1, *images), normal(2, channels, channels, 3, 3)])
    ran = check("broadcast_to", {"shape": images}, [normal(1, 3, channels, 1, 1)], tolerance=0)
    assert ran.tags == ([""], convolved.tags[1])


def test_a_convolution_takes_the_output_layout_of_another_convolution() -> None:
    ran = check("conv2d", WINDOWS, [normal(1, 2, 32, 9, 9), normal(2, 32, 32, 3, 3)])
    assert ran.arrangement.inputs[0] == ran.arrangement.outputs[0]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_of_few_channels_are_plain(channels: int, size: int) -> None:
    x, w, y = normal(1, 2, channels, 9, 9), normal(2, 16, channels, size, size), normal(3, 2, 16, 10 - size, 10 - size)
    geometry = {**WINDOWS, "padding": (0, 0, 0, 0)}
    forward = check("conv2d", geometry, [x, w])
    given = {**geometry, "weight_shape": w.shape, "dtype": "float32"}
    backward = check("conv2d_weight_gradient", given, [y, x])
    assert forward.arrangement.inputs[0].is_plain
    assert backward.arrangement.inputs[1].is_plain


DESCRIBED = {
    "conv2d": convolution._forward,
    "conv2d_input_gradient": convolution._input_gradient,
    "conv2d_weight_gradient": convolution._weight_gradient,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tag", ["", "acdb", None])
@pytest.mark.parametrize("op", DESCRIBED)
def test_no_convolution_is_bound_to_the_slow_reference_kernel(op: str, tag: str | None, dtype: str) -> None:
    """Plans name layouts by their memory: images of one channel or pixel have channels last, and are called plain."""
    if dtype not in library().dtypes:
        pytest.skip(f"oneDNN has no {dtype} on this CPU")
    for channels, filters, size, (stride, windows) in product((1, 3, 20), (6, 32), (1, 3, 5), ((1, 1), (1, 9), (2, 9))):
        pixels = size + stride * (windows - 1)
        x, y = (Shaped((2, *each), dtype) for each in ((channels, pixels, pixels), (filters, windows, windows)))
        w = Shaped((filters, channels, size, size), "float32" if op == "conv2d_weight_gradient" else dtype)
        inputs, outputs = {
            "conv2d": ([x, w], [y]),
            "conv2d_input_gradient": ([y, w], [x]),
            "conv2d_weight_gradient": ([y, x], [w]),
        }[op]
        geometry = {**WINDOWS, "strides": (stride, stride), "padding": (0, 0, 0, 0)}
        images = [preferred_layout(library(), spec) if tag is None else layout(spec, tag) for spec in inputs]
        offered = [None if spec is w else image for spec, image in zip(inputs, images, strict=True)]
        found = kernel(op).arrange(geometry, inputs, outputs, offered)
        assert found is not None
        recipe = DESCRIBED[op](library(), Node(geometry, inputs, outputs), found.inputs, found.outputs)
        assert recipe.description.implementation != "ref:any", (channels, filters, size, stride, windows)


def test_open_layouts_and_layouts_of_another_library_become_plain() -> None:
    x, w = normal(1, 8, 400), normal(2, 400, 500)
    ran = run_node(kernel("matmul"), MATRICES, [x, w], [plain(floats(8, 400)), None], registry=kernels())
    assert ran.tags == (["", ""], [""])
    np.testing.assert_allclose(ran.outputs[0], x @ w, rtol=1e-4, atol=1e-4)
    ran = run_node(kernel("softmax"), {}, [x], [Layout("ba", x.nbytes)], registry=kernels())
    assert ran.tags == ([""], [""])
    np.testing.assert_allclose(ran.outputs[0].sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("channels", "size", "dtype", "refused"),
    [
        (32, 5, "float32", ()),
        (20, 5, "float32", ("acdb",)),
        (32, 9, "float32", ()),
        (32, 1, "float32", ("acdb",)),
        (32, 5, "bfloat16", ()),
        (32, 7, "bfloat16", ("acdb",)),
    ],
)
def test_layouts_with_failing_gradients_become_plain(channels: int, size: int, dtype: str, refused: tuple[str]) -> None:
    x = Shaped((2, channels, 5, 6), dtype)
    for tag in IMAGE_TAGS:
        found = kernel(GRADIENT_OF_RESPONSE).arrange({**RESPONSE, "size": size}, [x, x], [x], [layout(x, tag)] * 2)
        if found is None:
            pytest.skip(f"oneDNN has no {dtype} on this CPU")
        taken = "" if tag in refused else tag
        assert [each.tag for each in (*found.inputs, *found.outputs)] == [taken] * 3


@pytest.mark.parametrize("tag", IMAGE_TAGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("geometry", POOLS)
def test_the_gradient_takes_the_positions_that_max_pool_returns(geometry: Any, dtype: str, tag: str) -> None:
    if dtype not in library().dtypes:
        pytest.skip(f"oneDNN has no {dtype} on this CPU")
    shape, *window = geometry
    x, dy = normal(1, *shape).astype(dtype), normal(2, *shape[:2], *slid(shape, *window)).astype(dtype)
    forward = check("max_pool", attributes_of(*window), [x], [tag], tolerance=0)
    attributes, offered = attributes_of(*window, input_shape=shape), list(forward.arrangement.outputs)
    arrays = [dy, forward.outputs[1]]
    ran = run_node(kernel("max_pool_gradient"), attributes, arrays, offered, registry=kernels())
    assert ran.arrangement.inputs == tuple(offered), "nothing is converted"
    assert_close(
        ran.outputs[0], exact("max_pool_gradient", arrays, attributes)[0], 1e-5 if dtype == "float32" else 2**-7
    )
    if dtype == "float32":
        assert forward.tags[0] == ran.tags[1] == [tag]


@pytest.mark.parametrize("tag", IMAGE_TAGS)
def test_plain_positions_are_converted_to_the_layout_of_the_gradient(tag: str) -> None:
    pooled = (2, 20, 4, 4)
    attributes = attributes_of((3, 3), (2, 2), (0, 1, 0, 1), input_shape=(2, 20, 8, 8))
    argmax = np.random.default_rng(3).integers(0, 4, pooled).astype(np.int32)
    ran = check("max_pool_gradient", attributes, [normal(2, *pooled), argmax], [tag, ""])
    assert ran.tags == ([tag, f"u8:{tag or 'abcd'}"], [tag]), "positions take the layout of the gradient"


def test_the_gradient_takes_the_layout_of_the_positions() -> None:
    pooled = floats(2, 20, 4, 4)
    inputs, offered = [pooled, Shaped(pooled.shape, "int32")], [plain(pooled), Layout("u8:aBcd16b", 1024)]
    attributes = attributes_of((2, 2), (2, 2), (0, 0, 0, 0), input_shape=(2, 20, 8, 8))
    arrangement = arranged(kernel("max_pool_gradient"), attributes, inputs, [floats(2, 20, 8, 8)], offered)
    assert [each.tag for each in (*arrangement.inputs, *arrangement.outputs)] == [BLOCKS, "u8:aBcd16b", BLOCKS]


def _specs(*arrays: Array | Ints | Shaped) -> list[Shaped]:
    return [each if isinstance(each, Shaped) else floats(*each) for each in arrays]


BFLOAT16, MATRIX = {"dtype": "bfloat16"}, floats(4, 6)
FOREIGN = Layout("somebody:else's", 96)
REFUSED = [
    pytest.param("broadcast_to", {"shape": (3, 4)}, [()], [(3, 4)], None, id="broadcast of a scalar"),
    pytest.param("concat", {"axis": 1}, [Shaped((2, 3), "int64")] * 2, [Shaped((2, 6), "int64")], None, id="int64"),
    pytest.param("concat", {"axis": 1}, [(2, 0), (2, 3)], [(2, 3)], None, id="an empty input"),
    pytest.param("matmul", MATRICES, [(0, 3), (3, 2)], [(0, 2)], None, id="product without rows"),
    pytest.param("matmul", MATRICES, [(2, 0), (0, 3)], [(2, 3)], None, id="product without terms"),
    pytest.param("softmax", {}, [(0, 3)], [(0, 3)], None, id="softmax without rows"),
    pytest.param("softmax", {}, [(1,) * 13], [(1,) * 13], None, id="too many axes"),
    pytest.param(
        "softmax_cross_entropy", {}, [(0, 3), Shaped((0,), "int64")], [(0,), (0, 3)], None, id="loss without rows"
    ),
    *(
        pytest.param("reduce_mean", {"axes": axes, "keepdims": False}, [(2, 3, 4, 5)], [mean], None, id=f"mean {axes}")
        for axes, mean in (((0, 2, 3), (3,)), ((2,), (2, 3, 5)), ((1, 2), (2, 5)))
    ),
    *(
        pytest.param("cast", {"dtype": y.dtype}, [x], [y], offered, id=f"cast of {what}")
        for what, x, y, offered in (
            ("booleans", Shaped((4,), "bool"), floats(4), [None]),
            ("floats to integers", floats(4), Shaped((4,), "int32"), [None]),
            ("float64", Shaped((4,), "float64"), floats(4), [None]),
            ("a scalar", floats(), Shaped((), "bfloat16"), [None]),
            ("another library's layout", MATRIX, Shaped((4, 6), "bfloat16"), [FOREIGN]),
            ("two views", MATRIX, Shaped((4, 6), "bfloat16"), [Layout("t:ab", 96), Layout("ba", 48)]),
        )
    ),
    *(
        pytest.param("convert", {}, [spec], [spec], [Layout(tag, spec.nbytes) for tag in tags], id=f"convert {what}")
        for what, spec, tags in (
            ("between views", MATRIX, ("t:ab", "ba")),
            ("to another library's layout", MATRIX, ("", FOREIGN.tag)),
            ("into bits", Shaped((4, 16), "bool"), ("", "bits:ab")),
            ("a scalar", floats(), ("", "")),
            ("an empty tensor", floats(0, 3), ("", "")),
            ("int64", Shaped((4, 6), "int64"), ("", "")),
        )
    ),
    pytest.param("convert", {}, [MATRIX], [MATRIX], [plain(MATRIX), None], id="convert to an open layout"),
]


@pytest.mark.parametrize(("op", "attributes", "inputs", "outputs", "offered"), REFUSED)
def test_unsupported_nodes_are_refused(
    op: str, attributes: dict[str, Any], inputs: Sequence[Any], outputs: Sequence[Any], offered: Any
) -> None:
    specs = _specs(*inputs)
    found = kernel(op).arrange(attributes, specs, _specs(*outputs), offered or [plain(spec) for spec in specs])
    assert found is None
