"""Layouts of tensors on a GPU, and the layouts that kernels choose."""

from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import Arrangement, KernelError, Layout, plain
from runner.kernels.gpu.element_kernels import broadcast
from runner.kernels.gpu.layouts import CHANNELS_LAST, arguments, channels_last, merged, offered_layout, strides
from runner.kernels.gpu.loading import MODULES
from runner.kernels.gpu.shape import in_units
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import registry_of, require_close, run_op
from tests.kernels.harness import Shaped, node_of

IMAGES = Shaped((2, 3, 4, 5), "float32")
MATRIX = Shaped((3, 4), "bfloat16")
Shape = tuple[int, ...]


def test_both_layouts_have_the_expected_strides() -> None:
    assert strides(IMAGES.shape, plain(IMAGES)) == (60, 20, 5, 1)
    assert strides(IMAGES.shape, channels_last(IMAGES)) == (60, 1, 15, 3)
    assert strides((), plain(Shaped((), "float32"))) == ()


def test_channels_last_needs_four_axes() -> None:
    with pytest.raises(ValueError, match=r"channels last of bfloat16\[3, 4\]: expected four axes"):
        channels_last(MATRIX)


def test_a_layout_of_another_device_is_refused(runtime: EmulatedRuntime) -> None:
    blocks = Layout("aBcd8b", IMAGES.nbytes)
    with pytest.raises(ValueError, match="layout 'aBcd8b'"):
        strides(IMAGES.shape, blocks)
    with pytest.raises(KernelError, match="no kernel for op 'convert'"):
        run_op(runtime, "convert", [np.zeros((2, 8, 3, 3), "float32")], {}, [blocks], registry=registry(runtime))


def test_one_offer_of_channels_last_is_enough_if_there_are_four_axes() -> None:
    offered = [None, plain(IMAGES), channels_last(IMAGES)]
    assert offered_layout(IMAGES, offered).tag == CHANNELS_LAST
    assert offered_layout(IMAGES, offered[:2]).is_plain
    assert offered_layout(MATRIX, offered).is_plain


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ([(2, 12), (3, 4), (4, 1)], [(24, 1)]),
        ([(4, 1, 3), (3, 4, 1)], [(4, 1, 3), (3, 4, 1)]),
        ([(3, 4, 1), (4, 1, 3)], [(4, 1, 3), (3, 4, 1)]),
        ([(1, 7), (5, 1), (1, 0)], [(5, 1)]),
        ([(1, 1)], []),
        ([(2, 60), (4, 15), (5, 3)], [(40, 3)]),  # the axes of (2, 3, 4, 5) with channels last, except the channels
    ],
)
def test_contiguous_axes_are_merged(axes: list[Shape], expected: list[Shape]) -> None:
    assert merged(axes) == expected


def test_missing_axes_are_appended_and_too_many_axes_are_an_error() -> None:
    assert arguments([(4, 1, 3), (3, 4, 1)], 3, 2) == [3, 1, 1, 4, 0, 3, 1, 0]
    assert all(isinstance(each, np.int64) for each in arguments([], 2, 1))
    with pytest.raises(ValueError, match="3 axes for a kernel that takes 2"):
        arguments([(2, 1)] * 3, 2, 1)


@pytest.mark.parametrize(
    ("block", "itemsize", "addresses", "expected"),
    [
        ([(6, 1, 1)], 4, (64, 64), (8, [(3, 1, 1)])),
        ([(6, 1, 1)], 4, (64, 68), (4, [(6, 1, 1)])),
        ([(5, 1, 1)], 4, (64, 64), (4, [(5, 1, 1)])),
        ([(3, 8, 16), (4, 1, 1)], 2, (64, 64), (8, [(3, 2, 4), (1, 1, 1)])),
        ([(3, 8, 6), (4, 1, 1)], 2, (64, 64), (4, [(3, 4, 3), (2, 1, 1)])),
        ([(3, 8, 16), (4, 2, 1)], 2, (64, 64), (2, [(3, 8, 16), (4, 2, 1)])),
        ([], 4, (64, 64), (4, [])),
    ],
)
def test_copies_use_the_largest_unit_that_divides_everything(
    block: list[Shape], itemsize: int, addresses: Shape, expected: object
) -> None:
    assert in_units(block, itemsize, addresses) == expected


def _plain(*shapes: Shape) -> list[tuple[Shaped, Layout]]:
    return [(spec, plain(spec)) for spec in (Shaped(shape, "float32") for shape in shapes)]


@pytest.mark.parametrize(
    ("inputs", "result", "wide"),
    [
        ([(3, 5), (3, 5)], (3, 5), (True, True)),
        ([(), (2, 3)], (2, 3), (False, True)),
        ([(1, 1), (3,)], (1, 3), (False, True)),
        ([(1, 3), (3,)], (1, 3), (True, True)),
        ([(), (1,)], (1,), (False, True)),
        ([(0, 1), ()], (0, 5), (True, False)),
        ([(3, 5), (5,)], (3, 5), None),
    ],
)
def test_inputs_are_wide_scalar_or_strided(inputs: list[Shape], result: Shape, wide: tuple[bool, ...] | None) -> None:
    assert broadcast(_plain(*inputs), *_plain(result)).wide == wide


def test_broadcast_axes_are_merged_and_the_innermost_comes_first() -> None:
    loops = broadcast(_plain((2, 3, 4, 5), (1, 3, 1, 1)), *_plain((2, 3, 4, 5)))
    assert loops.axes == ((20, 1, 0), (3, 20, 1), (2, 60, 0))
    x, bias = IMAGES, Shaped((1, 3, 1, 1), "float32")
    loops = broadcast([(x, channels_last(x)), (bias, plain(bias))], (x, channels_last(x)))
    assert loops.axes == ((3, 1, 1), (40, 3, 0))


def registry(runtime: EmulatedRuntime) -> Any:
    return registry_of(runtime, *MODULES)


def arranged(
    runtime: EmulatedRuntime, op: str, shapes: list[Shape], attributes: dict[str, Any], tags: list[str | None]
) -> Arrangement | None:
    """Return the arrangement of this project's kernel for float32 inputs; for the tag None, it chooses the layout."""
    node = node_of(op, [np.zeros(shape, "float32") for shape in shapes], attributes)
    specs = [Shaped(shape, "float32") for shape in shapes]
    offered = [
        None if tag is None else channels_last(spec) if tag else plain(spec)
        for spec, tag in zip(specs, tags, strict=True)
    ]
    return registry(runtime).find(op, "gpu", "cuda").arrange(node.attributes, specs, node.outputs, offered)


PAIR = [(2, 4, 3, 3)] * 2
ONE_STEP = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}


LAST, OVER_PIXELS = CHANNELS_LAST, {"axes": (0, 2, 3), "keepdims": False}


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "tags", "taken"),
    [
        # All tensors of a node with four axes have channels last if one offered layout has.
        ("relu", PAIR[:1], {}, [LAST], [LAST] * 2),
        ("sub", PAIR, {}, [None, LAST], [LAST] * 3),
        ("concat", PAIR, {"axis": 1}, ["", LAST], [LAST] * 3),
        ("split", PAIR[:1], {"axis": 1, "sizes": (2, 2)}, [LAST], [LAST] * 3),
        ("slice", PAIR[:1], {"begin": (0, 1, 2, 0), "size": (2, 2, 3, 2), "steps": (1, 1, -1, 2)}, [LAST], [LAST] * 2),
        ("pad", PAIR[:1], {"low": (0, 0, 0, 0), "high": (1, 1, 1, 1)}, [LAST], [LAST] * 2),
        ("conv2d", [(2, 4, 3, 3), (5, 4, 1, 1)], ONE_STEP, [LAST, None], [LAST] * 3),
        ("conv2d", [(2, 4, 3, 3), (5, 4, 1, 1)], ONE_STEP, ["", LAST], [LAST] * 3),
        ("reduce_sum", PAIR[:1], OVER_PIXELS, [LAST], [LAST, ""]),
        # A node is refused if it has more axes than the kernel supports.
        ("sub", [(2, 1) * 4, (1, 2) * 4], {}, ["", ""], [""] * 3),
        ("sub", [(2, 1) * 5, (1, 2) * 5], {}, ["", ""], None),
        ("pad", [(1,) * 6], {"low": (0,) * 6, "high": (0,) * 6}, [""], ["", ""]),
        ("pad", [(1,) * 7], {"low": (0,) * 7, "high": (0,) * 7}, [""], None),
        ("reduce_sum", [(2,) * 9], {"axes": (0, 2, 4, 6), "keepdims": False}, [""], ["", ""]),
        ("reduce_sum", [(2,) * 9], {"axes": (0, 1, 4, 6, 8), "keepdims": False}, [""], ["", ""]),
        ("reduce_sum", [(2,) * 9], {"axes": (0, 2, 4, 6, 8), "keepdims": False}, [""], None),
    ],
)
def test_kernels_choose_the_expected_layouts(
    runtime: EmulatedRuntime,
    op: str,
    shapes: list[Shape],
    attributes: dict[str, Any],
    tags: list[str | None],
    taken: list[str] | None,
) -> None:
    found = arranged(runtime, op, shapes, attributes, tags)
    assert (found and [layout.tag for layout in (*found.inputs, *found.outputs)]) == taken


def test_a_reshape_shares_memory_unless_elements_move(runtime: EmulatedRuntime) -> None:
    column, flat = Shaped((2, 8, 1, 1), "float32"), Shaped((16,), "float32")
    found = arranged(runtime, "reshape", [column.shape], {"shape": (16,)}, [CHANNELS_LAST])
    assert found == Arrangement((channels_last(column),), (plain(flat),), in_place=((0, 0),))
    found = arranged(runtime, "reshape", [(2, 8, 2, 1)], {"shape": (32,)}, [CHANNELS_LAST])
    assert found is not None
    assert found.in_place == ()


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 1), (3, 70, 5, 13), (2, 0, 3, 3), (40, 33, 1, 1)])
@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(each, marks=pytest.mark.slow) for each in ("bool", "int64"))]
)
@pytest.mark.parametrize(("source", "target"), [("", CHANNELS_LAST), (CHANNELS_LAST, ""), (CHANNELS_LAST,) * 2])
def test_layouts_are_converted(runtime: EmulatedRuntime, shape: Shape, dtype: str, source: str, target: str) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) * 9).astype(dtype)
    offered = [channels_last(Shaped.of(x)) if tag else plain(Shaped.of(x)) for tag in (source, target)]
    require_close(run_op(runtime, "convert", [x], {}, offered, registry=registry(runtime)), [x])
