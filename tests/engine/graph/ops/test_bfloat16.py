"""Ops over bfloat16: which tensors stay float32, and how results are rounded."""

import numpy as np
import pytest

from runner.engine.graph import ops
from runner.engine.graph.autodiff import gradients
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import OPS, ShapeError
from runner.engine.graph.tensor import Tensor, TensorSpec, state_dtype
from tests.engine.compile.passes.graph_text import Text
from tests.engine.graph.ops.calls import built
from tests.oracles import evaluate
from tests.samples import Array

NARROW = "bfloat16"
ULP = 2**-7
"""Relative distance of neighbouring numbers: an upper bound of the difference of two roundings."""


def drawn(graph: Graph) -> dict[Tensor, Array]:
    """Numbers within 0.5 and 2 for placeholders, and bools."""
    rng = np.random.default_rng(0)
    specs = {node[0]: node.outputs[0] for node in graph if node.op == "placeholder"}
    return {
        tensor: rng.random(spec.shape) < 0.5
        if spec.dtype == "bool"
        else rng.uniform(0.5, 2.0, spec.shape).astype(spec.dtype)
        for tensor, spec in specs.items()
    }


def test_state_is_float32_for_bfloat16() -> None:
    assert [state_dtype(dtype) for dtype in ("bfloat16", "float32", "float64")] == ["float32", "float32", "float64"]


REFUSALS = {
    "a scale in bfloat16": (
        "batch_norm(b2[4, 3], b2[3], b2[3])",
        r"op 'batch_norm': expected one value per channel, float32\[3\], came bfloat16\[3\]",
    ),
    "statistics in bfloat16": (
        "batch_norm_inference(b2[4, 3], f4[3], f4[3], b2[3], b2[3])",
        r"op 'batch_norm_inference': expected one value per channel, float32\[3\], came bfloat16\[3\]",
    ),
    "a float32 gradient of a bfloat16 normalization": (
        "batch_norm_gradient(b2[4, 3], f4[3], f4[3], f4[3], f4[4, 3])",
        r"op 'batch_norm_gradient': expected inputs of one dtype",
    ),
    "a bfloat16 gradient of float32 weights": (
        "matmul_bias_gradient(f4[4, 3], f4[4, 2], dtype='bfloat16')",
        r"op 'matmul_bias_gradient': expected a result of dtype float32 for float32\[3,2\], came bfloat16",
    ),
    "a product in double precision": (
        "matmul_fused(b2[4, 3], b2[3, 2], dtype='float64')",
        r"op 'matmul_fused': expected a result of dtype bfloat16 or float32 for bfloat16\[4,2\], came float64",
    ),
    "filters in double precision": (
        "conv2d_weight_gradient(b2[1, 2, 3, 3], b2[1, 1, 3, 3], weight_shape=(2, 1, 1, 1), dtype='float64')",
        r"op 'conv2d_weight_gradient': expected a result of dtype bfloat16 or float32 for .*, came float64",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_other_mixtures_of_dtypes_are_refused(call: str, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        built(call)


IMAGES, VECTOR = "b2[2, 3, 4, 5]", "f4[3]"
FILTERS = "weight_shape=(4, 3, 3, 3), padding=(1, 1, 1, 1), dtype='float32'"
FUSED = [
    f"batch_norm({IMAGES}, {VECTOR}, {VECTOR})",
    f"batch_norm_relu({IMAGES}, {VECTOR}, {VECTOR})",
    f"batch_norm_inference({IMAGES}, {VECTOR}, {VECTOR}, {VECTOR}, {VECTOR})",
    f"batch_norm_gradient({IMAGES}, {VECTOR}, {VECTOR}, {VECTOR}, {IMAGES})",
    f"batch_norm_relu_gradient({IMAGES}, {VECTOR}, {VECTOR}, {VECTOR}, bool[2, 3, 4, 5], {IMAGES})",
    f"conv2d_weight_bias_gradient(b2[2, 4, 4, 5], {IMAGES}, {FILTERS})",
    "matmul_bias_gradient(b2[7, 3], b2[7, 5], dtype='float32')",
    """matmul_elementwise(b2[7, 3], b2[7, 5], f4[3, 5], f4[()], program='mul 1 2; sub 0 3', outputs=(4, 3),
    product=1, transpose_a=True, dtype='float32')""",
    "matmul_fused(b2[4, 7], b2[7, 5], b2[5], bias=True, relu=True, dtype='float32')",
]


@pytest.mark.parametrize("call", FUSED)
def test_kernel_and_decomposition_agree_to_a_rounding(call: str) -> None:
    graph, node = built(call)
    feeds, decompose = drawn(graph), OPS[node.op].decompose
    assert decompose is not None
    parts = decompose(graph, node.inputs, node.attributes)
    assert [graph.spec(part) for part in parts] == list(node.outputs)
    values = evaluate(graph, [*node.tensors, *parts], feeds)
    for fused, composed in zip(values[: len(parts)], values[len(parts) :], strict=True):
        tolerance = ULP if fused.dtype == NARROW else 1e-5
        scale = np.abs(fused.astype("float64")).max()
        np.testing.assert_allclose(fused.astype("float64"), composed.astype("float64"), atol=tolerance * scale)


def test_gradients_of_batch_norm_are_bfloat16_for_images_and_float32_for_vectors() -> None:
    graph, node = built(f"batch_norm({IMAGES}, {VECTOR}, {VECTOR})")
    found = gradients(graph, list(node.tensors), list(node.inputs))
    assert [graph.spec(each) for each in found if each] == [graph.spec(each) for each in node.inputs]


def test_float32_gradient_of_bfloat16_weights_can_be_differentiated() -> None:
    graph, node = built(f"conv2d_weight_gradient(b2[2, 4, 4, 5], {IMAGES}, {FILTERS})")
    assert node.outputs == (TensorSpec((4, 3, 3, 3), "float32"),)
    found = gradients(graph, [node[0]], list(node.inputs))
    assert [graph.spec(each).dtype for each in found if each] == [NARROW, NARROW]


def test_float32_sum_of_bfloat16_products_is_not_rounded() -> None:
    tall = np.array([[1.0], [2.0**-9], [2.0**-10]], NARROW)
    for dtype, total in ((NARROW, 1.0), ("float32", 1 + 2**-9 + 2**-10)):
        graph, node = built(f"matmul_bias_gradient(b2[3, 1], b2[3, 1], dtype='{dtype}')")
        (dw,) = evaluate(graph, [node[0]], dict(zip(node.inputs, (tall, np.ones_like(tall)), strict=True)))
        assert float(dw[0, 0]) == total


@pytest.mark.parametrize("dtype", [NARROW, "float32"])
def test_product_in_a_chain_is_rounded_as_a_stored_product(dtype: str) -> None:
    program = "program='mul 1 #0.7; sub 0 2', outputs=(3, 2)"
    text = Text.parse(
        f"""x = input(7, 3); dy = input(7, 5); w = input(3, 5, dtype='{dtype}')
        a, b = matmul_elementwise(x, dy, w, {program}, product=1, transpose_a=True, dtype='{dtype}')
        p = matmul_fused(x, dy, transpose_a=True, dtype='{dtype}'); c, d = elementwise(w, p, {program})""",
        NARROW,
    )
    a, b, c, d = evaluate(text.graph, text.names("a b c d"), drawn(text.graph))
    assert (a.tobytes(), b.tobytes()) == (c.tobytes(), d.tobytes())


def test_value_of_the_requested_dtype_is_not_cast() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (3,), "float32")
    assert ops.as_dtype(graph, x, "float32") == x
    assert graph.spec(ops.as_dtype(graph, x, NARROW)).dtype == NARROW
    assert [node.op for node in graph] == ["placeholder", "cast"]
