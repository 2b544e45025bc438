"""Fused ops compute what their simpler parts compute."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine.op import OPS
from tests.op_cases import Case, all_cases
from tests.oracles import evaluate

_FUSED = [pytest.param(op, case, id=label) for op, case, label in all_cases() if OPS[op].decompose is not None]


@pytest.mark.parametrize(("op", "case"), _FUSED)
def test_kernel_and_decomposition_agree(op: str, case: Case) -> None:
    graph, inputs, node = case.build(op)
    decompose = OPS[op].decompose
    assert decompose is not None
    parts = decompose(graph, inputs, node.attributes)
    assert [graph.spec(part) for part in parts] == list(node.outputs)
    values = evaluate(graph, [*node.tensors, *parts], dict(zip(inputs, case.draw(seed=3), strict=True)))
    for fused, composed in zip(values[: len(parts)], values[len(parts) :], strict=True):
        np.testing.assert_allclose(fused, composed, rtol=1e-12, atol=1e-13)


def test_some_op_has_a_decomposition() -> None:
    assert {param.values[0] for param in _FUSED} >= {
        "batch_norm_gradient",
        "local_response_normalization_gradient",
    }
