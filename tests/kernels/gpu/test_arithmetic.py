"""Arithmetic and activation of a GPU against the reference kernels."""

from __future__ import annotations

import numpy as np
import pytest

from runner.kernels.gpu import activation, arithmetic
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import Array, drawn, reference, registry_of, require_close, run_op, table_of
from tests.op_cases import Case

UNARY = ("exp", "log", "log1p", "sign", "sigmoid", "tanh")
BFLOAT16 = 2.0**-7
"""A result that is another float32 may be rounded to the next bfloat16."""


def outputs(runtime: EmulatedRuntime, op: str, inputs: list[Array], attributes: dict[str, object]) -> list[Array]:
    return run_op(runtime, op, inputs, attributes, registry=registry_of(runtime, arithmetic, activation))


@pytest.mark.parametrize(("op", "case", "dtype"), table_of((*UNARY, "pow")))
def test_values_are_close_to_the_reference(runtime: EmulatedRuntime, op: str, case: Case, dtype: str) -> None:
    inputs, attributes = drawn(case, dtype)
    tolerance = {"float64": 1e-14, "float32": 1e-6, "bfloat16": BFLOAT16}[dtype]
    require_close(outputs(runtime, op, inputs, attributes), reference(op, inputs, attributes), tolerance)


@pytest.mark.parametrize("op", UNARY)
def test_special_values_go_where_numpy_lets_them(runtime: EmulatedRuntime, op: str) -> None:
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1000.0, -1000.0, 1e-30, -2.0], "float32")
    require_close(outputs(runtime, op, [values], {}), reference(op, [values], {}), 1e-6)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_whole_powers_are_exact(runtime: EmulatedRuntime, exponent: float) -> None:
    values = np.array([0.0, -1.7, 3.0, np.inf, 1.1], "float32")
    given = {"exponent": exponent}
    require_close(outputs(runtime, "pow", [values], given), reference("pow", [values], given))


def test_the_sign_of_integers(runtime: EmulatedRuntime) -> None:
    values = np.array([3, 0, -7], "int64")
    require_close(outputs(runtime, "sign", [values], {}), [np.array([1, 0, -1], "int64")])
