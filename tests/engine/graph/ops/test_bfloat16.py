"""Ops over bfloat16: which tensors stay float32, and how results are rounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from runner.engine.graph import ops
from runner.engine.graph.autodiff import gradients
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import OPS, ShapeError
from runner.engine.graph.tensor import Tensor, TensorSpec, state_dtype
from runner.kernels.elementwise import parse
from tests.op_cases import Array
from tests.oracles import evaluate

NARROW = "bfloat16"
ULP = 2**-7
"""Relative distance of neighbouring numbers: an upper bound of the difference of two roundings."""

EPSILON = {"epsilon": 1e-3}
GEOMETRY = {"strides": (1, 1), "padding": (1, 1, 1, 1), "groups": 1}


class Sketch:
    """A graph, its inputs and their values."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.feeds: dict[Tensor, Array] = {}

    def x(self, *shape: int, dtype: str = NARROW) -> Tensor:
        tensor = ops.placeholder(self.graph, shape, dtype)
        rng = np.random.default_rng(len(self.feeds))
        self.feeds[tensor] = rng.uniform(0.5, 2.0, shape).astype(dtype)
        return tensor

    def vectors(self, count: int, size: int = 3, dtype: str = "float32") -> list[Tensor]:
        return [self.x(size, dtype=dtype) for _ in range(count)]


def test_state_is_float32_for_bfloat16():
    assert [state_dtype(dtype) for dtype in ("bfloat16", "float32", "float64")] == ["float32", "float32", "float64"]


CAST_WEIGHTS = {
    **dict.fromkeys(("transpose_a", "transpose_b", "bias", "relu"), False),
    **dict.fromkeys(("cast_to", "dtype"), NARROW),
}

REFUSALS: dict[str, tuple[Callable[[Sketch], object], str]] = {
    "a scale in bfloat16": (
        lambda s: ops.batch_norm(s.graph, s.x(4, 3), *s.vectors(2, dtype=NARROW), **EPSILON),
        r"op 'batch_norm': expected one value per channel, float32\[3\], came bfloat16\[3\]",
    ),
    "statistics in bfloat16": (
        lambda s: ops.batch_norm_inference(s.graph, s.x(4, 3), *s.vectors(2), *s.vectors(2, dtype=NARROW), **EPSILON),
        r"op 'batch_norm_inference': expected one value per channel, float32\[3\], came bfloat16\[3\]",
    ),
    "a float32 gradient of a bfloat16 normalization": (
        lambda s: ops.batch_norm_gradient(s.graph, s.x(4, 3), *s.vectors(3), s.x(4, 3, dtype="float32"), **EPSILON),
        r"op 'batch_norm_gradient': expected inputs of one dtype",
    ),
    "a bfloat16 gradient of float32 weights": (
        lambda s: ops.matmul_bias_gradient(
            s.graph, s.x(4, 3, dtype="float32"), s.x(4, 2, dtype="float32"), dtype=NARROW
        ),
        r"op 'matmul_bias_gradient': expected a result of dtype float32 for float32\[3,2\], came bfloat16",
    ),
    "a product in double precision": (
        lambda s: ops.matmul_fused(s.graph, s.x(4, 3), s.x(3, 2), dtype="float64"),
        r"op 'matmul_fused': expected a result of dtype bfloat16 or float32 for bfloat16\[4,2\], came float64",
    ),
    "weights that are bfloat16 already": (
        lambda s: ops.matmul_cast(s.graph, s.x(4, 3), s.x(3, 2)),
        r"op 'matmul_cast': expected b of dtype float32, came bfloat16\[3,2\]",
    ),
    "rows that are float32": (
        lambda s: s.graph.add("matmul_cast", [s.x(4, 3, dtype="float32"), s.x(3, 2, dtype="float32")], CAST_WEIGHTS),
        r"op 'matmul_cast': expected a of dtype bfloat16, came float32\[4,3\]",
    ),
    "a product of one factor": (
        lambda s: s.graph.add("matmul_cast", [s.x(4, 3)], CAST_WEIGHTS),
        r"op 'matmul_cast': expected at least 2 inputs, came 1",
    ),
    "filters in double precision": (
        lambda s: ops.conv2d_weight_gradient(
            s.graph, s.x(1, 2, 3, 3), s.x(1, 1, 3, 3), weight_shape=(2, 1, 1, 1), dtype="float64"
        ),
        r"op 'conv2d_weight_gradient': expected a result of dtype bfloat16 or float32 for .*, came float64",
    ),
}


@pytest.mark.parametrize(("build", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_other_mixtures_of_dtypes_are_refused(build: Callable[[Sketch], object], message: str):
    with pytest.raises(ShapeError, match=message):
        build(Sketch())


def _mask(sketch: Sketch, *shape: int) -> Tensor:
    tensor = ops.placeholder(sketch.graph, shape, "bool")
    sketch.feeds[tensor] = np.random.default_rng(9).random(shape) < 0.5
    return tensor


IMAGES = (2, 3, 4, 5)
FUSED: dict[str, Callable[[Sketch], Sequence[Tensor]]] = {
    "batch_norm": lambda s: ops.batch_norm(s.graph, s.x(*IMAGES), *s.vectors(2), **EPSILON),
    "batch_norm_relu": lambda s: ops.batch_norm_relu(s.graph, s.x(*IMAGES), *s.vectors(2), **EPSILON),
    "batch_norm_inference": lambda s: [ops.batch_norm_inference(s.graph, s.x(*IMAGES), *s.vectors(4), **EPSILON)],
    "batch_norm_gradient": lambda s: ops.batch_norm_gradient(
        s.graph, s.x(*IMAGES), *s.vectors(3), s.x(*IMAGES), **EPSILON
    ),
    "batch_norm_relu_gradient": lambda s: ops.batch_norm_relu_gradient(
        s.graph, s.x(*IMAGES), *s.vectors(3), _mask(s, *IMAGES), s.x(*IMAGES), **EPSILON
    ),
    "conv2d_weight_bias_gradient": lambda s: ops.conv2d_weight_bias_gradient(
        s.graph, s.x(2, 4, 4, 5), s.x(*IMAGES), weight_shape=(4, 3, 3, 3), dtype="float32", **GEOMETRY
    ),
    "matmul_bias_gradient": lambda s: ops.matmul_bias_gradient(s.graph, s.x(7, 3), s.x(7, 5), dtype="float32"),
    "matmul_elementwise": lambda s: ops.matmul_elementwise(
        s.graph,
        *(s.x(7, 3), s.x(7, 5), [s.x(3, 5, dtype="float32"), s.x(dtype="float32")]),
        parse("mul 1 2; sub 0 3", 3, (4, 3)),
        product=1,
        transpose_a=True,
        dtype="float32",
    ),
    "matmul_cast": lambda s: [
        ops.matmul_cast(s.graph, s.x(4, 7), s.x(7, 5, dtype="float32"), s.x(5), relu=True),
    ],
    "matmul_fused": lambda s: [
        ops.matmul_fused(s.graph, s.x(4, 7), s.x(7, 5), s.x(5), relu=True, dtype="float32"),
    ],
}


@pytest.mark.parametrize("op", FUSED)
def test_kernel_and_decomposition_agree_to_a_rounding(op: str):
    sketch = Sketch()
    outputs = FUSED[op](sketch)
    node, decompose = sketch.graph.nodes[outputs[0].node], OPS[op].decompose
    assert decompose is not None
    parts = decompose(sketch.graph, node.inputs, node.attributes)
    assert [sketch.graph.spec(part) for part in parts] == list(node.outputs)
    values = evaluate(sketch.graph, [*outputs, *parts], sketch.feeds)
    for fused, composed in zip(values[: len(parts)], values[len(parts) :], strict=True):
        tolerance = ULP if fused.dtype == NARROW else 1e-5
        scale = np.abs(fused.astype("float64")).max()
        np.testing.assert_allclose(fused.astype("float64"), composed.astype("float64"), atol=tolerance * scale)


def test_gradients_of_batch_norm_are_bfloat16_for_images_and_float32_for_vectors():
    sketch = Sketch()
    graph, x, (gamma, beta) = sketch.graph, sketch.x(*IMAGES), sketch.vectors(2)
    found = gradients(graph, list(ops.batch_norm(graph, x, gamma, beta, **EPSILON)), [x, gamma, beta])
    assert [graph.spec(each) for each in found if each] == [graph.spec(each) for each in (x, gamma, beta)]


def test_float32_gradient_of_bfloat16_weights_can_be_differentiated():
    sketch = Sketch()
    graph, dy, x = sketch.graph, sketch.x(2, 4, 4, 5), sketch.x(*IMAGES)
    dw = ops.conv2d_weight_gradient(graph, dy, x, weight_shape=(4, 3, 3, 3), dtype="float32", **GEOMETRY)
    assert graph.spec(dw) == TensorSpec((4, 3, 3, 3), "float32")
    assert [graph.spec(each).dtype for each in gradients(graph, [dw], [dy, x]) if each] == [NARROW, NARROW]


def test_float32_sum_of_bfloat16_products_is_not_rounded():
    graph = Graph()
    x, dy = (ops.placeholder(graph, (3, 1), NARROW) for _ in range(2))
    tall = np.array([[1.0], [2.0**-9], [2.0**-10]], NARROW)
    feeds = {x: tall, dy: np.ones((3, 1), NARROW)}
    narrow, _ = ops.matmul_bias_gradient(graph, x, dy)
    wide, _ = ops.matmul_bias_gradient(graph, x, dy, dtype="float32")
    rounded, exact = evaluate(graph, [narrow, wide], feeds)
    assert (float(rounded[0, 0]), float(exact[0, 0])) == (1.0, 1 + 2**-9 + 2**-10)


@pytest.mark.parametrize("dtype", [NARROW, "float32"])
def test_product_in_a_chain_is_rounded_as_a_stored_product(dtype: str):
    sketch = Sketch()
    graph, x, dy, w = sketch.graph, sketch.x(7, 3), sketch.x(7, 5), sketch.x(3, 5, dtype=dtype)
    program = parse("mul 1 #0.7; sub 0 2", 2, (3, 2))
    consumed = ops.matmul_elementwise(graph, x, dy, [w], program, product=1, transpose_a=True, dtype=dtype)
    kept = ops.elementwise(graph, [w, ops.matmul_fused(graph, x, dy, transpose_a=True, dtype=dtype)], program)
    values = evaluate(graph, [*consumed, *kept], sketch.feeds)
    for a, b in zip(values[:2], values[2:], strict=True):
        assert a.tobytes() == b.tobytes()


def test_value_of_the_requested_dtype_is_not_cast():
    graph = Graph()
    x = ops.placeholder(graph, (3,), "float32")
    assert ops.as_dtype(graph, x, "float32") == x
    assert graph.spec(ops.as_dtype(graph, x, NARROW)).dtype == NARROW
    assert [node.op for node in graph] == ["placeholder", "cast"]
