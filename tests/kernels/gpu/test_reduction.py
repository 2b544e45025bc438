"""Reductions and broadcasting on an emulated GPU against the reference kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import plain
from runner.kernels.gpu import reduction
from runner.kernels.gpu.layouts import CHANNELS_LAST, channels_last, strides
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import DTYPES, drawn, reference, registry_of, require_close, run_op
from tests.kernels.harness import Shaped
from tests.op_cases import CASES

REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max")
TOLERANCES = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 1e-2}


def normal(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Any numbers."""
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [*REDUCTIONS, "argmax", "broadcast_to"])
def test_the_cases_of_the_table(runtime: EmulatedRuntime, op: str, dtype: str) -> None:
    registry = registry_of(runtime, reduction)
    for case in CASES[op]:
        inputs, attributes = drawn(case, dtype)
        found = run_op(runtime, op, inputs, attributes, registry=registry)
        require_close(found, reference(op, inputs, attributes), TOLERANCES[dtype])


@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (0, 2), (2, 3), (), (0, 1, 2, 3), (1, 3)])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_any_axes_of_images_of_both_layouts(
    either_order: EmulatedRuntime, op: str, axes: tuple[int, ...], layouts: str | None
) -> None:
    x = normal((3, 5, 7, 4))
    for keepdims in (False, True):
        attributes = {"axes": axes, "keepdims": keepdims}
        registry = registry_of(either_order, reduction)
        found = run_op(either_order, op, [x], attributes, layouts, registry=registry)
        require_close(found, reference(op, [x], attributes), 2e-6)


@pytest.mark.parametrize(
    ("shape", "axes"), [((9000,), (0,)), ((3000, 3), (0,)), ((3, 4100), (1,)), ((2, 40, 2000), (0, 2))]
)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_long_reductions_are_cut_into_slices(
    either_order: EmulatedRuntime, op: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    assert reduction.reduced_shape(shape, strides(shape, plain(Shaped((), "float32"))), axes).slices > 1
    x = normal(shape)
    attributes = {"axes": axes, "keepdims": False}
    found = run_op(either_order, op, [x], attributes, registry=registry_of(either_order, reduction))
    exact = reference(op, [x.astype("float64")], attributes)
    require_close(found, [each.astype("float32") for each in exact], 2e-5)


def test_the_sum_of_no_elements_is_zero(runtime: EmulatedRuntime) -> None:
    for shape, axes in (((0, 3), (0,)), ((3, 0), (0,)), ((0,), (0,))):
        attributes, x = {"axes": axes, "keepdims": False}, normal(shape)
        registry = registry_of(runtime, reduction)
        require_close(
            run_op(runtime, "reduce_sum", [x], attributes, registry=registry), reference("reduce_sum", [x], attributes)
        )


@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_the_first_of_equal_maxima_is_found(either_order: EmulatedRuntime, axis: int, layouts: str | None) -> None:
    x = np.random.default_rng(1).integers(0, 3, (3, 11, 5, 4)).astype("float32")
    registry = registry_of(either_order, reduction)
    found = run_op(either_order, "argmax", [x], {"axis": axis}, layouts, registry=registry)
    require_close(found, reference("argmax", [x], {"axis": axis}))


@pytest.mark.parametrize("values", [[np.nan, 1, np.nan], [-np.inf] * 3, [2, np.inf, np.nan], [1, 5, 5]])
def test_nan_is_the_largest_number(either_order: EmulatedRuntime, values: list[float]) -> None:
    x = np.array(values, "float32")
    registry = registry_of(either_order, reduction)
    attributes = {"axes": (0,), "keepdims": False}
    require_close(run_op(either_order, "argmax", [x], {"axis": 0}, registry=registry), [x.argmax(keepdims=False)[()]])
    require_close(run_op(either_order, "reduce_max", [x], attributes, registry=registry), [np.max(x)])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(runtime: EmulatedRuntime, dtype: str) -> None:
    x = np.array([[-5, 2**30], [-7, 2**30], [-9, -3]], dtype)
    registry = registry_of(runtime, reduction)
    for op in ("reduce_sum", "reduce_max"):
        attributes = {"axes": (0,), "keepdims": False}
        require_close(run_op(runtime, op, [x], attributes, registry=registry), reference(op, [x], attributes))
    require_close(run_op(runtime, "argmax", [x], {"axis": 0}, registry=registry), reference("argmax", [x], {"axis": 0}))


@pytest.mark.parametrize("dtype", ["float32", "bool", "int64"])
@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
def test_broadcasting_images(runtime: EmulatedRuntime, dtype: str, layouts: str | None) -> None:
    registry = registry_of(runtime, reduction)
    for shape, wide in (
        ((2, 5, 1, 1), (2, 5, 3, 4)),
        ((1, 5, 3, 4), (2, 5, 3, 4)),
        ((), (2, 0)),
        ((5, 1, 1), (2, 5, 3, 4)),
    ):
        x, attributes = (normal(shape) > 0).astype(dtype), {"shape": wide}
        found = run_op(runtime, "broadcast_to", [x], attributes, layouts, registry=registry)
        require_close(found, reference("broadcast_to", [x], attributes))


def test_images_are_reduced_as_they_lie(runtime: EmulatedRuntime) -> None:
    image, channels = Shaped((2, 4, 3, 3), "float32"), Shaped((4,), "float32")
    kernel = registry_of(runtime, reduction).find("reduce_sum", "gpu", "cuda")
    arrangement = kernel.arrange({"axes": (0, 2, 3)}, [image], [channels], [channels_last(image)])
    assert arrangement is not None
    assert arrangement.inputs == (channels_last(image),)


@pytest.mark.parametrize("layout", ["", CHANNELS_LAST])
def test_the_bias_gradient_of_a_convolution_fills_the_gpu(layout: str) -> None:
    shape = (128, 64, 55, 55)
    lying = channels_last(Shaped(shape, "float32")) if layout else plain(Shaped(shape, "float32"))
    found = reduction.reduced_shape(shape, strides(shape, lying), (0, 2, 3))
    assert found.blocks * found.slices >= reduction.ENOUGH_BLOCKS
    assert found.across == (32 if layout else 1)


def test_no_thread_adds_more_than_a_float_bears() -> None:
    rows = 10_000_000
    found = reduction.reduced_shape((rows, 1024), (1024, 1), (0,))
    assert found.length * found.across / 256 <= reduction.MOST_PER_THREAD
    assert found.slices * found.length >= rows


def test_more_than_four_axes_that_are_apart_are_refused(runtime: EmulatedRuntime) -> None:
    """Neighbours that are reduced, or kept, count as one."""
    kernel = registry_of(runtime, reduction).find("reduce_sum", "gpu", "cuda")
    for axes, taken in (((0, 2, 4, 6), True), ((0, 1, 4, 6, 8), True), ((0, 2, 4, 6, 8), False)):
        spec = Shaped((2,) * 9, "float32")
        kept = Shaped((2,) * (9 - len(axes)), "float32")
        found = kernel.arrange({"axes": axes, "keepdims": False}, [spec], [kept], [plain(spec)])
        assert (found is not None) == taken, axes
