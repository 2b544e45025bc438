"""Cross-entropies, computed from logits so that nothing overflows."""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes, OpDef, expect, register
from runner.engine.ops.activation import sigmoid, softmax_gradient
from runner.engine.ops.arithmetic import mul, neg, sub
from runner.engine.ops.common import (
    INTEGERS,
    expect_dtype,
    expect_rank,
    expect_same_dtype,
    input_flops,
    single_output,
)
from runner.engine.ops.indexing import one_hot
from runner.engine.ops.shape import reshape
from runner.engine.tensor import FLOATS, Tensor, TensorSpec


def softmax_cross_entropy(
    graph: Graph, logits: Tensor, labels: Tensor, *, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Add (loss, probabilities): loss[n] = -log p[n, labels[n]] in nats, p = softmax(logits) over classes.

    logits, probabilities: (N, C) float; loss: (N,); labels: (N,) integers within 0..C-1, anything else is an
    error when the step runs.
    """
    node = graph.add("softmax_cross_entropy", [logits, labels], name=name)
    return node[0], node[1]


def sigmoid_cross_entropy(graph: Graph, logits: Tensor, targets: Tensor, *, name: str | None = None) -> Tensor:
    """Add -t log s(x) - (1 - t) log(1 - s(x)) element by element, s the logistic function, in nats.

    logits x and targets t (probabilities): one shape and float dtype.
    Computed as max(x, 0) - x t + log1p(e ** -|x|).
    """
    return graph.add("sigmoid_cross_entropy", [logits, targets], name=name)[0]


def _infer_softmax(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    op = "softmax_cross_entropy"
    logits, labels = specs
    expect_dtype(op, logits, FLOATS, "logits")
    expect_rank(op, logits, 2, "logits (N, C)")
    expect(logits.shape[1] > 0, op, "at least one class", logits)
    expect_dtype(op, labels, INTEGERS, "labels")
    expect(labels.shape == logits.shape[:1], op, f"one label per row of logits {logits}", labels)
    return [TensorSpec(labels.shape, logits.dtype), logits]


def _infer_sigmoid(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    op = "sigmoid_cross_entropy"
    logits, targets = specs
    expect_same_dtype(op, specs)
    expect_dtype(op, logits, FLOATS)
    expect(targets.shape == logits.shape, op, f"targets like the logits, {logits}", targets)
    return [logits]


def _softmax_rule(graph: Graph, node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    logits, labels = node.inputs
    dloss, dprobabilities = totals
    parts: list[Tensor] = []
    if dloss is not None:
        spec = graph.spec(logits)
        truth = one_hot(graph, labels, depth=spec.shape[1], dtype=spec.dtype)
        column = reshape(graph, dloss, (spec.shape[0], 1))
        parts.append(mul(graph, sub(graph, node[1], truth), column))
    if dprobabilities is not None:
        parts.append(softmax_gradient(graph, node[1], dprobabilities))
    return [parts[0] if len(parts) == 1 else graph.add("add_n", parts)[0], None]


def _sigmoid_rule(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    logits, targets = node.inputs
    dlogits = mul(graph, dy, sub(graph, sigmoid(graph, logits), targets))
    return [dlogits, neg(graph, mul(graph, dy, logits))]


register(OpDef("softmax_cross_entropy", _infer_softmax, _softmax_rule, arity=2, flops=input_flops(6)))
register(OpDef("sigmoid_cross_entropy", _infer_sigmoid, single_output(_sigmoid_rule), arity=2, flops=input_flops(7)))
