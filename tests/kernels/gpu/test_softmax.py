"""Softmax on an emulated GPU against the reference kernels."""

from __future__ import annotations

import numpy as np
import pytest

from runner.kernels.gpu import softmax
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import DTYPES, drawn, reference, registry_of, require_close, run_op
from tests.op_cases import CASES

OPS = ("softmax", "log_softmax")
TOLERANCES = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 1e-2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_cases_of_the_table(runtime: EmulatedRuntime, op: str, dtype: str) -> None:
    registry = registry_of(runtime, softmax)
    for case in CASES[op]:
        inputs, attributes = drawn(case, dtype)
        found = run_op(runtime, op, inputs, attributes, registry=registry)
        require_close(found, reference(op, inputs, attributes), TOLERANCES[dtype])


@pytest.mark.parametrize("shape", [(3, 1), (17, 10), (5, 37), (2, 1000), (1, 2051), (0, 4)])
@pytest.mark.parametrize("op", OPS)
def test_short_and_long_rows(either_order: EmulatedRuntime, op: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).normal(0, 20, shape).astype("float32")
    for in_place in (False, True):
        registry = registry_of(either_order, softmax)
        found = run_op(either_order, op, [x], {}, registry=registry, in_place=in_place)
        require_close(found, reference(op, [x], {}), 4e-6)


@pytest.mark.parametrize("op", OPS)
def test_a_row_with_nan_is_nan_and_no_other(either_order: EmulatedRuntime, op: str) -> None:
    x = np.zeros((2, 40), "float32")
    x[0, 33] = np.nan
    (found,) = run_op(either_order, op, [x], {}, registry=registry_of(either_order, softmax))
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1]).all()


@pytest.mark.parametrize("column", [0, 17, 39])
@pytest.mark.parametrize("op", OPS)
def test_large_numbers_do_not_overflow(either_order: EmulatedRuntime, op: str, column: int) -> None:
    x = np.zeros((2, 40), "float32")
    x[1, column] = 1000
    found = run_op(either_order, op, [x], {}, registry=registry_of(either_order, softmax))
    require_close(found, reference(op, [x], {}), 2e-6)


def test_threads_of_a_row_have_something_to_do() -> None:
    assert [softmax.depth_of(columns) for columns in (1, 4, 5, 10, 1000, 100_000)] == [1, 1, 2, 4, 256, 256]
