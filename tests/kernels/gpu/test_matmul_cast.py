"""Products that cast their weights, on an emulated GPU."""

from __future__ import annotations

import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 by it
import numpy as np
import pytest

from runner.kernels.gpu import matmul_cast
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import drawn_for, reference, registry_of, require_close, run_op, table_of
from tests.samples import Case

TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2}


@pytest.mark.parametrize(("op", "case", "dtype"), table_of(["matmul_cast"]))
def test_the_cases_of_the_table(runtime: EmulatedRuntime, op: str, case: Case, dtype: str) -> None:
    inputs, attributes = drawn_for(op, case, dtype)
    found = run_op(runtime, op, inputs, attributes, registry=registry_of(runtime, matmul_cast))
    require_close(found, reference(op, inputs, attributes), TOLERANCE[dtype])


def test_weights_of_float32_are_cast_before_the_product(runtime: EmulatedRuntime) -> None:
    a = np.ones((1, 1), "bfloat16")
    b = np.array([[1 + 2**-9]], np.float32)
    plainly = {"transpose_a": False, "transpose_b": False, "bias": False, "relu": False}
    attributes = {**plainly, "cast_to": "bfloat16", "dtype": "float32"}
    (found,) = run_op(runtime, "matmul_cast", [a, b], attributes, registry=registry_of(runtime, matmul_cast))
    assert found[0, 0] == 1.0
