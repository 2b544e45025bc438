"""Fused ops equal their decompositions."""

import numpy as np
import pytest

from runner.engine.graph.op import OPS
from runner.engine.graph.ops.common import MADE_BY_PASSES
from tests.op_cases import all_cases
from tests.oracles import evaluate
from tests.samples import Case

EXACT = {
    "batch_norm_inference",
    "batch_norm_relu",
    "batch_norm_relu_gradient",
    "conv2d_fused",
    "conv2d_weight_bias_gradient",
    "elementwise",
    "matmul_bias_gradient",
    "matmul_elementwise",
    "matmul_fused",
}
"""Ops that replace others in a graph and must not change a bit."""

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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op", "case"), [param for param in _FUSED if param.values[0] in EXACT])
def test_op_made_by_passes_has_the_bits_of_its_decomposition(op: str, case: Case, dtype: str) -> None:
    graph, inputs, node = case.build(op, dtype)
    decompose = OPS[op].decompose
    assert decompose is not None
    parts = decompose(graph, inputs, node.attributes)
    values = evaluate(graph, [*node.tensors, *parts], dict(zip(inputs, case.draw(5, dtype), strict=True)))
    for fused, composed in zip(values[: len(parts)], values[len(parts) :], strict=True):
        assert fused.tobytes() == composed.tobytes()


def test_every_op_made_by_passes_has_a_decomposition() -> None:
    made = {op for op, definition in OPS.items() if definition.gradient == MADE_BY_PASSES}
    assert made == EXACT - {"batch_norm_inference"}
    assert all(OPS[op].decompose is not None for op in made)
    assert MADE_BY_PASSES.reason == "it is made by passes after gradients exist"


def test_some_op_has_a_decomposition() -> None:
    assert {param.values[0] for param in _FUSED} >= {"batch_norm_gradient", "local_response_normalization_gradient"}
