"""Batch normalisation on a GPU against the reference kernels, cut into one part of a channel and into many."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu import batch_normalization, fused_normalization
from runner.kernels.gpu.channels import THREADS, division
from runner.kernels.gpu.layouts import CHANNELS_LAST
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import Array, drawn, reference, registry_of, require_close, run_op
from tests.kernels.harness import Shaped
from tests.op_cases import CASES

OPS = (
    "batch_norm",
    "batch_norm_gradient",
    "batch_norm_inference",
    "batch_norm_relu",
    "batch_norm_relu_gradient",
)
TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 2**-7}
EPSILON = {"epsilon": 1e-3}


def _found(
    runtime: EmulatedRuntime, op: str, inputs: list[Array], layouts: str | None, *, in_place: bool = False
) -> list[Array]:
    registry = registry_of(runtime, batch_normalization, fused_normalization)
    return run_op(runtime, op, inputs, EPSILON, layouts, registry=registry, in_place=in_place)


def _check(runtime: EmulatedRuntime, op: str, inputs: list[Array], layouts: str | None, **more: Any) -> None:
    expected = reference(op, inputs, EPSILON)
    require_close(_found(runtime, op, inputs, layouts, **more), expected, TOLERANCE[inputs[0].dtype.name])


def _inputs(op: str, shape: tuple[int, ...], dtype: str) -> list[Array]:
    """Images of a mean that is not 0, float32 vectors beside bfloat16 ones, and a mask where one is wanted."""
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(shape) + 3).astype(dtype)
    vectors = "float32" if dtype == "bfloat16" else dtype
    wanted = {"batch_norm": 2, "batch_norm_relu": 2, "batch_norm_inference": 4}.get(op, 3)
    inputs = [x, *(rng.uniform(0.5, 2, shape[1]).astype(vectors) for _ in range(wanted))]
    if "relu_gradient" in op:
        inputs.append(rng.random(shape) < 0.5)
    return [*inputs, rng.standard_normal(shape).astype(dtype)] if "gradient" in op else inputs


def test_the_table(runtime: EmulatedRuntime) -> None:
    for op in OPS:
        for case, layouts in itertools.product(CASES[op], (None, CHANNELS_LAST)):
            _check(runtime, op, drawn(case, "float32")[0], layouts)


@pytest.mark.parametrize(
    ("shape", "layouts", "dtype"),
    [
        ((65, 3, 8, 9), None, "float32"),  # lines of 32 threads, splits of examples
        ((3, 2, 40, 31), None, "float32"),  # more pixels than threads
        ((17, 5, 13, 11), CHANNELS_LAST, "float32"),  # 8 channels a block, three of them beyond the last
        ((2, 70, 9, 8), CHANNELS_LAST, "float32"),  # blocks of channels
        ((17, 5, 13, 11), CHANNELS_LAST, "float64"),
        ((17, 5, 13, 11), CHANNELS_LAST, "bfloat16"),
        ((60, 2, 8, 9), None, "bfloat16"),
        ((300, 70), None, "float64"),
    ],
)
def test_parts_of_channels(runtime: EmulatedRuntime, shape: tuple[int, ...], layouts: str | None, dtype: str) -> None:
    for op in OPS:
        _check(runtime, op, _inputs(op, shape, dtype), layouts)


def test_more_than_one_part_is_tested() -> None:
    for shape, last in [((65, 3, 8, 9), False), ((17, 5, 13, 11), True)]:
        assert division(EmulatedRuntime.multiprocessors, Shaped(shape, "float32"), last).splits > 1


def test_more_parts_than_rows_of_threads(compiled_sources: Path) -> None:
    gpu = EmulatedRuntime(compiled_sources)
    gpu.multiprocessors = 20
    shape = (1200, 64)
    cut = division(gpu.multiprocessors, Shaped(shape, "bfloat16"), channels_last=True)
    assert cut.splits > THREADS // cut.width
    _check(gpu, "batch_norm_gradient", _inputs("batch_norm_gradient", shape, "bfloat16"), None)


def test_either_order_of_threads_gives_the_same(compiled_sources: Path, runtime: EmulatedRuntime) -> None:
    other = EmulatedRuntime(compiled_sources, reversed=True)
    for op, layouts in (("batch_norm_relu", None), ("batch_norm_relu_gradient", CHANNELS_LAST)):
        inputs = _inputs(op, (17, 5, 13, 11), "float32")
        require_close(_found(other, op, inputs, layouts), _found(runtime, op, inputs, layouts))


def test_in_the_place_of_what_is_not_needed_any_more(runtime: EmulatedRuntime) -> None:
    for op in OPS:
        _check(runtime, op, _inputs(op, (17, 2, 13, 11), "float32"), CHANNELS_LAST, in_place=True)


def test_the_variance_of_large_numbers_is_not_lost(runtime: EmulatedRuntime) -> None:
    x = (1e4 + np.arange(3000) % 3).astype(np.float32).reshape(-1, 1)
    _, _, variance = _found(runtime, "batch_norm", [x, np.ones(1, np.float32), np.zeros(1, np.float32)], None)
    assert variance[0] == pytest.approx(2 / 3, rel=1e-5)


def test_what_is_no_number_passes_the_relu(runtime: EmulatedRuntime) -> None:
    x = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    y, _, _, mask = _found(runtime, "batch_norm_relu", [x, np.ones(2, np.float32), np.zeros(2, np.float32)], None)
    assert np.isnan(y[:, 1]).all()
    assert mask.tolist() == [[False, False], [True, False]]


@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
def test_what_is_no_number_stays_in_its_channel(runtime: EmulatedRuntime, layouts: str | None) -> None:
    for op in ("batch_norm_relu", "batch_norm_relu_gradient"):
        inputs = _inputs(op, (2, 3, 5, 4), "float32")
        inputs[0][0, 0] = np.nan
        _check(runtime, op, inputs, layouts)
