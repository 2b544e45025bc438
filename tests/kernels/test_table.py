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
def test_a_kernel_is_repeatable_and_as_precise_as_its_dtype(op: str, case: Case) -> None:
    narrow, wide = case.draw(SEED, "float32"), case.draw(SEED)
    single, again = (_run(op, case, narrow, "float32") for _ in range(2))  # evaluate checks shapes and dtypes
    double = _run(op, case, [a.astype(d.dtype) for a, d in zip(narrow, wide, strict=True)])
    for low, same, high in zip(single, again, double, strict=True):
        assert low.tobytes() == same.tobytes()
        assert np.isfinite(high).all()
        np.testing.assert_allclose(low, high, rtol=case.tolerance, atol=case.tolerance)
