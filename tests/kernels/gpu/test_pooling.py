"""Pooling on a GPU against the reference kernels: every result but its last bits, and positions exactly."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu import pooling
from runner.kernels.gpu.layouts import CHANNELS_LAST
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import DTYPES, Array, drawn, reference, registry_of, require_close, run_op
from tests.op_cases import CASES

TABLE = [(op, case) for op in pooling.OPS for case in CASES[op]]
TOLERANCE = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 1e-30}
"""Sums are added in the order of the reference, and bfloat16 rounds them once."""

GEOMETRIES: tuple[dict[str, Any], ...] = (
    {"window": (3, 3), "strides": (2, 2), "padding": (0, 1, 1, 0)},
    {"window": (3, 2), "strides": (1, 3), "padding": (2, 0, 1, 1)},
)


def _check(runtime: EmulatedRuntime, op: str, inputs: list[Array], attributes: dict[str, Any], layouts: Any) -> None:
    registry = registry_of(runtime, pooling)
    found = run_op(runtime, op, inputs, attributes, layouts, registry=registry)
    require_close(found, reference(op, inputs, attributes), TOLERANCE[found[0].dtype.name])


@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_table(runtime: EmulatedRuntime, dtype: str, layouts: str | None) -> None:
    for op, case in TABLE:
        _check(runtime, op, *drawn(case, dtype), layouts)


def _images(shape: tuple[int, ...], dtype: str) -> Array:
    # Few values, so that windows have several maxima.
    return np.random.default_rng(1).integers(-3, 3, shape).astype(dtype)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_channels_in_packs(runtime: EmulatedRuntime, dtype: str, geometry: dict[str, Any]) -> None:
    assert pooling.pack_of(dtype, 16) > 1
    x = _images((2, 16, 7, 8), dtype)
    y, argmax = reference("max_pool", [x], geometry)
    back = {**geometry, "input_shape": x.shape}
    _check(runtime, "max_pool", [x], geometry, CHANNELS_LAST)
    _check(runtime, "max_pool_gradient", [y, argmax], back, CHANNELS_LAST)
    _check(runtime, "max_pool_gather", [x, argmax], geometry, CHANNELS_LAST)
    for counted in (False, True):
        _check(runtime, "avg_pool", [x], {**geometry, "count_padding": counted}, CHANNELS_LAST)
        _check(runtime, "avg_pool_gradient", [y], {**back, "count_padding": counted}, CHANNELS_LAST)


@pytest.mark.parametrize("shape", [(0, 4, 6, 6), (2, 0, 6, 6)])
@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
def test_no_images_and_no_channels(runtime: EmulatedRuntime, shape: tuple[int, ...], layouts: str | None) -> None:
    for op, case in [(op, CASES[op][0]) for op in pooling.OPS]:
        attributes = dict(case.attributes)
        if "input_shape" in attributes:
            attributes["input_shape"] = shape
        pooled = (*shape[:2], 3, 3)
        inputs = [_images(pooled if op.endswith("_gradient") else shape, "float32")]
        if len(case.inputs) == 2:
            inputs.append(np.zeros(pooled, np.int32))
        _check(runtime, op, inputs, attributes, layouts)


def test_what_is_no_number_and_what_is_infinite(runtime: EmulatedRuntime) -> None:
    geometry = {"window": (2, 2), "strides": (2, 2), "padding": (1, 1, 1, 1)}
    for place, value in itertools.product(range(4), (np.nan, -np.inf)):
        x = np.full((1, 1, 4, 4), -np.inf, np.float32)
        x[0, 0, 1 + place // 2, 1 + place % 2] = value
        _check(runtime, "max_pool", [x], geometry, None)
    dy, argmax = np.full((1, 1, 2, 2), np.inf, np.float32), np.zeros((1, 1, 2, 2), np.int32)
    plain = {**geometry, "padding": (0, 0, 0, 0), "input_shape": (1, 1, 4, 4)}
    _check(runtime, "max_pool_gradient", [dy, argmax], plain, None)


def test_a_position_that_is_not_in_the_image_or_no_position_gathers_nothing(runtime: EmulatedRuntime) -> None:
    geometry = {"window": (2, 2), "strides": (2, 2), "padding": (1, 1, 1, 1)}
    x, argmax = _images((1, 2, 4, 4), "float32"), np.zeros((1, 2, 3, 3), np.int32)
    argmax[0] = np.array([-1, 7])[:, None, None]
    _check(runtime, "max_pool_gather", [x, argmax], geometry, None)
