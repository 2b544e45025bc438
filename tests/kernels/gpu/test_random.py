"""Random draws of a GPU: those of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu import random
from runner.kernels.philox import bits, key
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import DTYPES, reference, registry_of, require_close, run_op

STREAM: dict[str, Any] = {"seed": 7, "key": "conv1/w"}


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4), (1001,), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_uniform_draws_are_those_of_the_host(runtime: EmulatedRuntime, shape: tuple[int, ...], dtype: str) -> None:
    given = {**STREAM, "shape": shape, "dtype": dtype, "low": -1.0, "high": 3.1}
    found = run_op(runtime, "random_uniform", [], given, registry=registry_of(runtime, random))
    require_close(found, reference("random_uniform", [], given))


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4), (1000,), (2, 3, 4, 5)])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-13), ("bfloat16", 2.0**-7)])
def test_normal_draws_are_close_to_those_of_the_host(
    runtime: EmulatedRuntime, shape: tuple[int, ...], dtype: str, tolerance: float
) -> None:
    given = {**STREAM, "shape": shape, "dtype": dtype, "mean": 1.0, "stddev": 0.1}
    found = run_op(runtime, "random_normal", [], given, registry=registry_of(runtime, random))
    require_close(found, reference("random_normal", [], given), tolerance)


@pytest.mark.parametrize("shape", [(3, 5), (4,), (0, 4), (2, 0), (3, 2, 3, 3), (2, 515)])
@pytest.mark.parametrize("first", [0, 3, 8])
@pytest.mark.parametrize("rate", [0.4, 0.0, 0.999])
def test_masks_are_those_of_the_host(runtime: EmulatedRuntime, shape: tuple[int, ...], first: int, rate: float) -> None:
    given = {**STREAM, "shape": shape, "dtype": "float32", "rate": rate, "first": first}
    index = np.random.default_rng(0).integers(0, 1 << 40, shape[0])
    inputs = [np.asarray((1 << 33) + 4, "int64"), index]
    found = run_op(runtime, "dropout_mask", inputs, given, registry=registry_of(runtime, random))
    require_close(found, reference("dropout_mask", inputs, given))


@pytest.mark.parametrize("above", [0.0, 0.5])
def test_a_draw_is_held_against_the_rate_exactly(runtime: EmulatedRuntime, above: float) -> None:
    word = int(bits(key(STREAM["seed"], STREAM["key"]), np.zeros(1, np.int64), 1, 4)[0, 0])
    given = {**STREAM, "shape": (1, 1), "dtype": "float64", "rate": (word + above) * 2.0**-32, "first": 0}
    inputs = [np.asarray(4, "int64"), np.zeros(1, "int64")]
    (found,) = run_op(runtime, "dropout_mask", inputs, given, registry=registry_of(runtime, random))
    assert (found[0, 0] == 0) == (above > 0)
    require_close([found], reference("dropout_mask", inputs, given))


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_of_every_dtype_keep_the_same_elements(runtime: EmulatedRuntime, dtype: str) -> None:
    given = {**STREAM, "shape": (3, 50), "dtype": dtype, "rate": 0.1, "first": 0}
    inputs = [np.asarray(4, "int64"), np.arange(3)]
    found = run_op(runtime, "dropout_mask", inputs, given, registry=registry_of(runtime, random))
    require_close(found, reference("dropout_mask", inputs, given))
