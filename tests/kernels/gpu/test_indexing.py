"""Rows by number on an emulated GPU: the bits of the reference kernels, and their words for what is no index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu import indexing
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import DTYPES, drawn, reference, registry_of, require_close, run_op
from tests.op_cases import CASES

Array = np.ndarray[Any, Any]
OPS = ("gather", "scatter_add", "one_hot")


def numbers(*shape: int, dtype: str = "float32") -> Array:
    """Any numbers."""
    return np.random.default_rng(6).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_cases_of_the_table(either_order: EmulatedRuntime, op: str, dtype: str) -> None:
    registry = registry_of(either_order, indexing)
    for case in CASES[op]:
        inputs, attributes = drawn(case, dtype)
        found = run_op(either_order, op, inputs, attributes, registry=registry)
        require_close(found, reference(op, inputs, attributes))


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "bfloat16"])
@pytest.mark.parametrize("columns", [1, 3, 8])
def test_rows_of_any_size_are_gathered(runtime: EmulatedRuntime, columns: int, dtype: str) -> None:
    inputs = [numbers(6, columns).astype(dtype), np.array([[5, 0], [5, 2]])]
    require_close(
        run_op(runtime, "gather", inputs, {}, registry=registry_of(runtime, indexing)), reference("gather", inputs)
    )


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("gather", [numbers(4, 0), np.array([1, 3])], {}),
        ("gather", [numbers(4, 2), np.zeros(0, "int64")], {}),
        ("scatter_add", [np.zeros(0, "int64"), numbers(0, 2)], {"rows": 3}),
        ("scatter_add", [np.array([1]), numbers(1, 0)], {"rows": 3}),
        ("one_hot", [np.zeros(0, "int32")], {"depth": 3, "dtype": "float32"}),
    ],
)
def test_empty_tensors(runtime: EmulatedRuntime, op: str, inputs: list[Array], attributes: dict[str, Any]) -> None:
    found = run_op(runtime, op, inputs, attributes, registry=registry_of(runtime, indexing))
    require_close(found, reference(op, inputs, attributes))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_updates_of_one_row_are_added_in_their_order(either_order: EmulatedRuntime, dtype: str) -> None:
    indices = np.random.default_rng(1).integers(0, 5, 300)
    updates = (numbers(300, 3) * 1000).astype(dtype)
    found = run_op(
        either_order, "scatter_add", [indices, updates], {"rows": 7}, registry=registry_of(either_order, indexing)
    )
    require_close(found, reference("scatter_add", [indices, updates], {"rows": 7}))


def refused(op: str, indices: Array) -> tuple[list[Array], dict[str, Any]]:
    """Inputs and attributes of an op with four rows."""
    if op == "gather":
        return [numbers(4, 2), indices], {}
    if op == "scatter_add":
        return [indices, numbers(*indices.shape, 2)], {"rows": 4}
    return [indices], {"depth": 4, "dtype": "float32"}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op", OPS)
def test_the_first_index_that_is_no_row_is_named(either_order: EmulatedRuntime, op: str, dtype: str) -> None:
    inputs, attributes = refused(op, np.array([[0, 3, 1], [2, -7, 4]], dtype))
    expected = rf"IndexError: op '{op}': index -7 at \[1, 1\] is outside 0\.\.3$"
    with pytest.raises(RuntimeError, match=expected):
        run_op(either_order, op, inputs, attributes, registry=registry_of(either_order, indexing))
    with pytest.raises(IndexError, match=expected.replace("IndexError: ", "")):
        reference(op, inputs, attributes)


def test_the_first_of_very_many_indices_is_named(either_order: EmulatedRuntime) -> None:
    indices = np.zeros(1000, "int64")
    indices[[300, 556, 999]] = 8, 9, 10
    inputs, attributes = refused("gather", indices)
    with pytest.raises(RuntimeError, match=r"index 8 at \[300\] is outside"):
        run_op(either_order, "gather", inputs, attributes, registry=registry_of(either_order, indexing))
