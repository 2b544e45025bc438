"""Every reference kernel on every case of ``tests/op_cases.py``: shapes, dtypes, precision, and repeatable bits."""

import numpy as np
import pytest

from tests.op_cases import all_cases
from tests.oracles import evaluate
from tests.samples import Array, Case

ALL = [pytest.param(op, case, id=label) for op, case, label in all_cases()]
SEED = 4


def _run(op: str, case: Case, arrays: list[Array], dtype: str = "float64") -> list[Array]:
    graph, inputs, node = case.build(op, dtype)
    return evaluate(graph, node.tensors, dict(zip(inputs, arrays, strict=True)))


@pytest.mark.parametrize(("op", "case"), ALL)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outputs_have_the_inferred_shapes_and_dtypes(op: str, case: Case, dtype: str) -> None:
    outputs = _run(op, case, case.draw(SEED, dtype), dtype)  # evaluate checks shapes and dtypes
    assert all(np.isfinite(output).all() for output in outputs)


@pytest.mark.parametrize(("op", "case"), ALL)
def test_single_precision_is_close_to_double(op: str, case: Case) -> None:
    single = _run(op, case, case.draw(SEED, "float32"), "float32")
    rounded = [a.astype(d.dtype) for a, d in zip(case.draw(SEED, "float32"), case.draw(SEED), strict=True)]
    double = _run(op, case, rounded)
    for low, high in zip(single, double, strict=True):
        np.testing.assert_allclose(low, high, rtol=case.tolerance, atol=case.tolerance)


@pytest.mark.parametrize(("op", "case"), ALL)
def test_the_same_inputs_give_the_same_bits(op: str, case: Case) -> None:
    first, second = (_run(op, case, case.draw(SEED, "float32"), "float32") for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes()
