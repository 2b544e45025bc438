"""Rearrangements on an emulated GPU: the bits of the reference kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import Arrangement, plain
from runner.kernels.gpu import shape
from runner.kernels.gpu.layouts import CHANNELS_LAST, channels_last
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import DTYPES, drawn, reference, registry_of, require_close, run_op
from tests.kernels.harness import Shaped
from tests.op_cases import CASES

OPS = ("reshape", "transpose", "concat", "split", "slice", "pad")
IMAGES: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("reshape", [(2, 3, 4, 5)], {"shape": (2, 60)}),
    ("reshape", [(2, 8, 1, 1)], {"shape": (16,)}),
    ("transpose", [(2, 3, 4, 5)], {"perm": (3, 1, 0, 2)}),
    ("concat", [(2, 3, 4, 5), (2, 4, 4, 5), (2, 0, 4, 5)], {"axis": 1}),
    ("concat", [(2, 3, 1, 5), (2, 3, 4, 5)], {"axis": 2}),
    ("split", [(2, 8, 3, 3)], {"axis": 1, "sizes": (2, 4, 2)}),
    ("slice", [(3, 4, 5, 6)], {"begin": (1, 0, 2, 1), "size": (2, 4, 3, 4)}),
    ("pad", [(2, 3, 4, 2)], {"low": (0, 1, 2, 0), "high": (1, 0, 1, 1)}),
]
EMPTY: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("reshape", [(0, 3)], {"shape": (3, 0)}),
    ("transpose", [(0, 3)], {"perm": (1, 0)}),
    ("concat", [(0, 3), (0, 2)], {"axis": 1}),
    ("slice", [(4, 5)], {"begin": (1, 5), "size": (2, 0)}),
    ("pad", [(0, 2)], {"low": (1, 0), "high": (1, 1)}),
    ("pad", [(0, 2)], {"low": (0, 0), "high": (0, 1)}),
]


def numbered(shape_: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Different values that every dtype but the smallest holds."""
    return np.arange(np.prod(shape_)).reshape(shape_).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_cases_of_the_table(runtime: EmulatedRuntime, op: str, dtype: str) -> None:
    registry = registry_of(runtime, shape)
    for case in CASES[op]:
        inputs, attributes = drawn(case, dtype)
        require_close(run_op(runtime, op, inputs, attributes, registry=registry), reference(op, inputs, attributes))


@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
@pytest.mark.parametrize(("op", "shapes", "attributes"), IMAGES)
def test_images_of_both_layouts(
    runtime: EmulatedRuntime,
    op: str,
    shapes: list[tuple[int, ...]],
    attributes: dict[str, Any],
    dtype: str,
    layouts: str | None,
) -> None:
    inputs = [numbered(each, dtype) for each in shapes]
    found = run_op(runtime, op, inputs, attributes, layouts, registry=registry_of(runtime, shape))
    require_close(found, reference(op, inputs, attributes))


@pytest.mark.parametrize(("op", "shapes", "attributes"), EMPTY)
def test_nothing_is_moved_of_empty_tensors(
    runtime: EmulatedRuntime, op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]
) -> None:
    inputs = [numbered(each, "float32") for each in shapes]
    found = run_op(runtime, op, inputs, attributes, registry=registry_of(runtime, shape))
    require_close(found, reference(op, inputs, attributes))


@pytest.mark.parametrize("op", ["concat", "split", "slice", "pad"])
def test_all_tensors_lie_as_one_that_is_offered_with_channels_last(runtime: EmulatedRuntime, op: str) -> None:
    kernel = registry_of(runtime, shape).find(op, "gpu", "cuda")
    spec = Shaped((2, 4, 3, 3), "float32")
    arrangement = kernel.arrange({}, [spec] * 2, [spec] * 2, [plain(spec), channels_last(spec)])
    assert arrangement is not None
    assert {layout.tag for layout in (*arrangement.inputs, *arrangement.outputs)} == {CHANNELS_LAST}


def test_a_reshape_of_what_lies_in_order_may_share_memory(runtime: EmulatedRuntime) -> None:
    registry = registry_of(runtime, shape)
    kernel = registry.find("reshape", "gpu", "cuda")
    flat, column = Shaped((16,), "float32"), Shaped((2, 8, 1, 1), "float32")
    shares = kernel.arrange({"shape": (16,)}, [column], [flat], [channels_last(column)])
    assert shares == Arrangement((channels_last(column),), (plain(flat),), in_place=((0, 0),))
    x = numbered((2, 8, 1, 1), "float32")
    (found,) = run_op(runtime, "reshape", [x], {"shape": (16,)}, CHANNELS_LAST, registry=registry, in_place=True)
    require_close([found], [x.reshape(16)])


def test_a_reshape_of_channels_last_moves_elements(runtime: EmulatedRuntime) -> None:
    kernel = registry_of(runtime, shape).find("reshape", "gpu", "cuda")
    image, flat = Shaped((2, 8, 2, 1), "float32"), Shaped((32,), "float32")
    arrangement = kernel.arrange({"shape": (32,)}, [image], [flat], [channels_last(image)])
    assert arrangement is not None
    assert arrangement.in_place == ()


def test_more_axes_than_six_are_refused(runtime: EmulatedRuntime) -> None:
    registry = registry_of(runtime, shape)
    for axes, taken in ((6, True), (7, False)):
        spec = Shaped((1,) * axes, "float32")
        kernel, attributes = registry.find("pad", "gpu", "cuda"), {"low": (0,) * axes, "high": (0,) * axes}
        assert (kernel.arrange(attributes, [spec], [spec], [plain(spec)]) is not None) == taken
