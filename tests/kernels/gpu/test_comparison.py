"""Comparison and choice on a GPU: to the bit what the reference kernels give."""

from __future__ import annotations

import numpy as np
import pytest

from runner.kernels.gpu import comparison
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import drawn, reference, registry_of, require_close, run_op, table_of
from tests.op_cases import Case

COMPARISONS = ("greater", "greater_equal", "less", "equal")


@pytest.mark.parametrize(("op", "case", "dtype"), table_of((*COMPARISONS, "select")))
def test_values_are_those_of_the_reference(runtime: EmulatedRuntime, op: str, case: Case, dtype: str) -> None:
    inputs, attributes = drawn(case, dtype)
    found = run_op(runtime, op, inputs, attributes, registry=registry_of(runtime, comparison))
    require_close(found, reference(op, inputs, attributes))


@pytest.mark.parametrize("op", COMPARISONS)
def test_nothing_is_greater_less_or_equal_to_nan(runtime: EmulatedRuntime, op: str) -> None:
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], "float32")
    pairs = [np.repeat(values, 5), np.tile(values, 5)]
    found = run_op(runtime, op, pairs, registry=registry_of(runtime, comparison))
    require_close(found, reference(op, pairs))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64"])
def test_every_dtype_can_be_chosen_and_compared(runtime: EmulatedRuntime, dtype: str) -> None:
    rng = np.random.default_rng(0)
    condition = rng.random(37) < 0.5
    a, b = (rng.integers(0, 2, 37).astype(dtype) for _ in range(2))
    for op, inputs in {"select": [condition, a, b], "equal": [a, b]}.items():
        found = run_op(runtime, op, inputs, registry=registry_of(runtime, comparison))
        require_close(found, reference(op, inputs))


def test_a_choice_follows_its_inputs_in_channels_last(runtime: EmulatedRuntime) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.random((2, 3, 4, 5)) < 0.5, *(rng.standard_normal((2, 3, 4, 5)).astype("float32") for _ in range(2))]
    found = run_op(runtime, "select", inputs, None, "nhwc", registry=registry_of(runtime, comparison), in_place=True)
    require_close(found, reference("select", inputs))
