"""Every reference kernel over the table of cases: shapes, dtypes, precisions and layouts in memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.op_cases import Array, Case, all_cases
from tests.oracles import evaluate

ALL = [pytest.param(op, case, id=label) for op, case, label in all_cases()]
WITH_INPUTS = [pytest.param(op, case, id=label) for op, case, label in all_cases() if case.inputs]
SEED = 4


def _run(op: str, case: Case, arrays: list[Array], dtype: str = "float64") -> list[Array]:
    graph, inputs, node = case.build(op, dtype)
    return evaluate(graph, node.tensors, dict(zip(inputs, arrays, strict=True)))


@pytest.mark.parametrize(("op", "case"), ALL)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outputs_are_what_the_shape_rule_says(op: str, case: Case, dtype: str) -> None:
    outputs = _run(op, case, case.draw(SEED, dtype), dtype)  # evaluate compares shapes and dtypes
    assert all(np.isfinite(output).all() for output in outputs)


@pytest.mark.parametrize(("op", "case"), ALL)
def test_single_precision_is_close_to_double(op: str, case: Case) -> None:
    single = _run(op, case, case.draw(SEED, "float32"), "float32")
    rounded = [a.astype(d.dtype) for a, d in zip(case.draw(SEED, "float32"), case.draw(SEED), strict=True)]
    double = _run(op, case, rounded)
    for low, high in zip(single, double, strict=True):
        np.testing.assert_allclose(low, high, rtol=case.tolerance, atol=case.tolerance)


def _strided(array: Array) -> Array:
    """The same values, every second element of a larger array."""
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def _backwards(array: Array) -> Array:
    """The same values, stored from the last to the first along every axis."""
    return np.flip(np.flip(array).copy())


@pytest.mark.parametrize("layout", [np.asfortranarray, _strided, _backwards])
@pytest.mark.parametrize(("op", "case"), WITH_INPUTS)
def test_the_layout_of_inputs_in_memory_does_not_matter(op: str, case: Case, layout: Callable[[Array], Array]) -> None:
    arrays = case.draw(SEED)
    scattered = [layout(array) if array.ndim else array for array in arrays]
    for plain, other in zip(_run(op, case, arrays), _run(op, case, scattered), strict=True):
        np.testing.assert_allclose(other, plain, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("op", "case"), ALL)
def test_the_same_inputs_give_the_same_bits(op: str, case: Case) -> None:
    first, second = (_run(op, case, case.draw(SEED, "float32"), "float32") for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes()
