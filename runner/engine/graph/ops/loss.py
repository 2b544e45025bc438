"""Cross-entropies, computed from logits without overflow."""

from collections.abc import Sequence

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.node import Node
from runner.engine.graph.op import Attributes, Builder, ByDecomposition, OpDef, Specs, expect, register
from runner.engine.graph.ops.activation import sigmoid, softmax_gradient
from runner.engine.graph.ops.common import (
    INTEGERS,
    decomposition,
    elementwise_gradient,
    expect_dtype,
    expect_floats,
    expect_rank,
    input_flops,
)
from runner.engine.graph.ops.indexing import one_hot
from runner.engine.graph.ops.shape import reshape
from runner.engine.graph.tensor import FLOATS, Tensor, TensorSpec


def softmax_cross_entropy(
    graph: Builder, logits: Tensor, labels: Tensor, *, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Add a node for (loss, p), where loss[n] = -log p[n, labels[n]] in nats and p = softmax(logits) over classes.

    logits, p: (N, C) float; loss: (N,); labels: (N,) integers within 0..C-1, else the step raises an error.
    """
    node = graph.add("softmax_cross_entropy", [logits, labels], name=name)
    return node[0], node[1]


def softmax_cross_entropy_gradient(graph: Builder, probabilities: Tensor, labels: Tensor, dloss: Tensor) -> Tensor:
    """Add a node for dlogits[n] = (probabilities[n] - e) * dloss[n], where e is 1 at labels[n] and 0 elsewhere.

    probabilities, dlogits: (N, C) float; labels: (N,) integers within 0..C-1; other labels raise an error when the step
    runs. dloss: (N,), the gradient of the loss.
    """
    return graph.add("softmax_cross_entropy_gradient", [probabilities, labels, dloss])[0]


def sigmoid_cross_entropy(graph: Builder, logits: Tensor, targets: Tensor, *, name: str | None = None) -> Tensor:
    """Add a node for -t log s(x) - (1 - t) log(1 - s(x)) in nats, element by element; s is the logistic function.

    x: logits; t: targets, which are probabilities. Both have the same shape and float dtype.
    The loss is computed as max(x, 0) - x t + log1p(e ** -|x|).
    """
    return graph.add("sigmoid_cross_entropy", [logits, targets], name=name)[0]


def _infer_softmax(logits: TensorSpec, labels: TensorSpec) -> Specs:
    _expect_classes(logits, labels, "logits")
    return [TensorSpec(labels.shape, logits.dtype), logits]


def _infer_softmax_gradient(probabilities: TensorSpec, labels: TensorSpec, dloss: TensorSpec) -> Specs:
    _expect_classes(probabilities, labels, "probabilities")
    loss = TensorSpec(labels.shape, probabilities.dtype)
    expect(dloss == loss, f"a gradient of the loss, {loss}", dloss)
    return [probabilities]


def _expect_classes(rows: TensorSpec, labels: TensorSpec, role: str) -> None:
    expect_dtype(rows, FLOATS, role)
    expect_rank(rows, 2, f"{role} (N, C)")
    expect(rows.shape[1] > 0, "at least one class", rows)
    expect_dtype(labels, INTEGERS, "labels")
    expect(labels.shape == rows.shape[:1], f"one label per row of {role} {rows}", labels)


def _infer_sigmoid(logits: TensorSpec, targets: TensorSpec) -> Specs:
    expect_floats([logits, targets])
    expect(targets.shape == logits.shape, f"targets like the logits, {logits}", targets)
    return [logits]


def _softmax_rule(graph: Builder, node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    labels = node.inputs[1]
    dloss, dprobabilities = totals
    parts: list[Tensor] = []
    if dloss is not None:
        parts.append(softmax_cross_entropy_gradient(graph, node[1], labels, dloss))
    if dprobabilities is not None:
        parts.append(softmax_gradient(Expr(graph, dprobabilities), Expr(graph, node[1])).tensor)
    return [parts[0] if len(parts) == 1 else graph.add("add_n", parts)[0], None]


@decomposition
def _decompose_gradient(attributes: Attributes, probabilities: Expr, labels: Expr, dloss: Expr) -> Sequence[Expr]:
    spec = probabilities.spec
    truth = apply(one_hot, labels, depth=spec.shape[1], dtype=spec.dtype)
    column = apply(reshape, dloss, shape=(spec.shape[0], 1))
    return [(probabilities - truth) * column]


register(
    OpDef("softmax_cross_entropy", _infer_softmax, _softmax_rule, arity=2, flops=input_flops(6)),
    OpDef(
        "softmax_cross_entropy_gradient",
        _infer_softmax_gradient,
        ByDecomposition(),
        arity=3,
        flops=input_flops(2),
        decompose=_decompose_gradient,
    ),
    OpDef(
        "sigmoid_cross_entropy",
        _infer_sigmoid,
        elementwise_gradient(lambda dy, y, x, t: [dy * (apply(sigmoid, x) - t), -(dy * x)]),
        arity=2,
        flops=input_flops(7),
    ),
)
