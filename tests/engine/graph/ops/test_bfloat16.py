"""Ops on bfloat16: tensors that stay float32, the rounding of results, and the truncation of float32."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.graph import Graph, Tensor, TensorSpec, gradients, ops, state_dtype
from runner.kernels.registry import Registry
from tests.engine.compile.passes.graph_text import Text
from tests.engine.compile.passes.training_graphs import values_for
from tests.engine.graph.ops.calls import built, with_decomposition
from tests.engine.running import run_once
from tests.oracles import evaluate
from tests.samples import Array

NARROW = "bfloat16"
ULP = 2**-7
"""The largest relative distance between adjacent bfloat16 numbers; two roundings of a number differ by at most this."""


def test_state_of_bfloat16_layers_is_float32() -> None:
    assert [state_dtype(dtype) for dtype in ("bfloat16", "float32", "float64")] == ["float32", "float32", "float64"]


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
def test_kernel_and_decomposition_agree_within_one_rounding(call: str) -> None:
    graph, node = built(call)
    for fused, composed in with_decomposition(graph, node.inputs, node, values_for(graph)):
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
def test_fused_product_is_rounded_like_a_stored_product(dtype: str) -> None:
    program = "program='mul 1 #0.7; sub 0 2', outputs=(3, 2)"
    text = Text.parse(
        f"""x = input(7, 3); dy = input(7, 5); w = input(3, 5, dtype='{dtype}')
        a, b = matmul_elementwise(x, dy, w, {program}, product=1, transpose_a=True, dtype='{dtype}')
        p = matmul_fused(x, dy, transpose_a=True, dtype='{dtype}'); c, d = elementwise(w, p, {program})""",
        NARROW,
    )
    a, b, c, d = evaluate(text.graph, text.names("a b c d"), values_for(text.graph))
    assert (a.tobytes(), b.tobytes()) == (c.tobytes(), d.tobytes())


def test_value_of_the_requested_dtype_is_not_cast() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (3,), "float32")
    assert ops.as_dtype(graph, x, "float32") == x
    assert graph.spec(ops.as_dtype(graph, x, NARROW)).dtype == NARROW
    assert [node.op for node in graph] == ["placeholder", "cast"]


KEPT = {
    "one": (0x3F800000, 0x3F800000),
    "truncated, not rounded up": (0x3F80FFFF, 0x3F800000),
    "truncated, not rounded to even": (0xBFC18000, 0xBFC10000),
    "zero": (0x00000000, 0x00000000),
    "negative zero": (0x80000000, 0x80000000),
    "infinity": (0x7F800000, 0x7F800000),
    "negative infinity": (0xFF800000, 0xFF800000),
    "largest": (0x7F7FFFFF, 0x7F7F0000),
    "subnormal": (0x007FFFFF, 0x007F0000),
    "smallest that is kept": (0x80010000, 0x80010000),
    "largest that becomes zero": (0x8000FFFF, 0x80000000),
    "quiet NaN": (0x7FC00000, 0x7FC00000),
    "NaN by its lowest bit": (0x7F800001, 0x7FC00000),
    "negative NaN by lower bits": (0xFF80FFFF, 0xFFC00000),
    "NaN with a payload": (0xFFA20001, 0xFFE20000),
}


def there_and_back(shape: tuple[int, ...]) -> tuple[Graph, Tensor, list[Tensor]]:
    """Return a graph, a placeholder x, and two fetches: x truncated to bfloat16, and the result cast to float32."""
    graph = Graph()
    x = ops.placeholder(graph, shape, "float32")
    narrow = ops.truncate_to_bfloat16(graph, x)
    return graph, x, [narrow, ops.cast(graph, narrow, "float32")]


def from_bits(*bits: int) -> Array:
    return np.array(bits, np.uint32).view(np.float32)


@pytest.mark.parametrize(("before", "after"), KEPT.values(), ids=KEPT.keys())
def test_truncation_keeps_the_upper_16_bits(before: int, after: int) -> None:
    graph, x, fetches = there_and_back((1,))
    narrow, wide = evaluate(graph, fetches, {x: from_bits(before)})
    assert [hex(narrow.view(np.uint16)[0]), hex(wide.view(np.uint32)[0])] == [hex(after >> 16), hex(after)]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_truncation_kernels_equal_the_reference_bit_for_bit(registry: Registry, bits: list[int]) -> None:
    bits += [before for before, _ in KEPT.values()]
    graph, x, fetches = there_and_back((len(bits),))
    feeds = {x: from_bits(*bits)}
    for came, expected in zip(run_once(graph, registry, fetches, feeds), evaluate(graph, fetches, feeds), strict=True):
        assert came.tobytes() == expected.tobytes()
    finite = np.isfinite(feeds[x])
    cut = from_bits(*(each & 0xFFFF0000 for each in bits))
    np.testing.assert_array_equal(evaluate(graph, fetches, feeds)[1][finite], cut[finite], strict=True)
