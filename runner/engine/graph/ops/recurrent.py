"""Long short-term memory over the steps of a sequence (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000).

The ops compute only the recurrence. The products of the inputs with their weights, and the gradient of the recurrent
weights, are computed outside of these ops, each by a single matrix product for all steps.
"""

from collections.abc import Sequence

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.node import Node
from runner.engine.graph.op import Attributes, Builder, ByDecomposition, OpDef, Specs, expect, register
from runner.engine.graph.ops.activation import sigmoid, tanh
from runner.engine.graph.ops.common import decomposition, expect_floats, expect_rank
from runner.engine.graph.ops.linear import matmul
from runner.engine.graph.ops.shape import concat, reshape, split
from runner.engine.graph.ops.structural import fill
from runner.engine.graph.tensor import Tensor, TensorSpec

_GATES = 4


def lstm(
    graph: Builder, inputs: Tensor, weights: Tensor, h0: Tensor, c0: Tensor, *, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Add a node for (h, c, gates) of T steps of a layer of H units, for N sequences.

    inputs: (T, N, 4 H), the part of the gates' arguments that does not depend on h. As in PyTorch, the columns are in
    the order input gate i, forget gate f, candidate g, output gate o. weights: (H, 4 H), written W below. h0, c0:
    (N, H), output and cell before the first step. h, c: (T, N, H). gates: (T, N, 4 H), the values of i, f, g and o,
    which only the gradient reads. All tensors have one float dtype. In step t, with a = inputs[t] + h[t-1] W::

        i, f, o = sigmoid(a_i), sigmoid(a_f), sigmoid(a_o)    g = tanh(a_g)
        c[t] = f c[t-1] + i g                                 h[t] = o tanh(c[t])
    """
    node = graph.add("lstm", [inputs, weights, h0, c0], name=name)
    return node[0], node[1], node[2]


def lstm_gradient(
    graph: Builder,
    dh: Tensor,
    dc: Tensor,
    weights: Tensor,
    c0: Tensor,
    c: Tensor,
    gates: Tensor,
    dgates: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Add a node for (dinputs, dh0, dc0) of :func:`lstm`: (T, N, 4 H), (N, H) and (N, H).

    dh, dc: (T, N, H), the gradients of h and c. dgates: (T, N, 4 H), the gradient of the output ``gates``, without the
    gradient that reaches the gates through h and c; None for zeros.
    """
    more = [] if dgates is None else [dgates]
    node = graph.add("lstm_gradient", [dh, dc, weights, c0, c, gates, *more])
    return node[0], node[1], node[2]


def _infer(inputs: TensorSpec, weights: TensorSpec, h0: TensorSpec, c0: TensorSpec) -> Specs:
    expect_floats([inputs, weights, h0, c0])
    expect_rank(inputs, 3, "inputs (T, N, 4 H)")
    expect_rank(weights, 2, "weights (H, 4 H)")
    steps, rows, columns = inputs.shape
    units = weights.shape[0]
    expect(steps > 0 and units > 0, "at least one step and one unit", f"inputs {inputs} and weights {weights}")
    expect(weights.shape[1] == columns == _GATES * units, f"weights (H, 4 H) for inputs {inputs}", weights)
    state = TensorSpec((rows, units), inputs.dtype)
    expect(h0 == state and c0 == state, f"h0 and c0 {state}", f"{h0} and {c0}")
    states = TensorSpec((steps, rows, units), inputs.dtype)
    return [states, states, inputs]


def _infer_gradient(*specs: TensorSpec) -> Specs:
    expect(len(specs) in (6, 7), "6 or 7 inputs", len(specs))
    dh, dc, weights, c0, c, gates, *dgates = specs
    states, _, _ = _infer(gates, weights, c0, c0)
    expect(dh == dc == c == states, f"dh, dc and c {states}", f"{dh}, {dc} and {c}")
    expect(all(each == gates for each in dgates), f"dgates {gates}", dgates)
    return [gates, c0, c0]


def _gradient(graph: Builder, node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    _, weights, h0, c0 = node.inputs
    h, c, gates = node.tensors
    steps, rows, units = graph.spec(h).shape
    dh, dc = (
        fill(graph, 0.0, (steps, rows, units), graph.spec(h).dtype) if each is None else each for each in totals[:2]
    )
    dinputs, dh0, dc0 = lstm_gradient(graph, dh, dc, weights, c0, c, gates, totals[2])
    before = [reshape(graph, h0, (1, rows, units))]
    if steps > 1:
        before.append(split(graph, h, 0, [steps - 1, 1])[0])
    read = reshape(graph, concat(graph, before, 0), (steps * rows, units))
    columns = reshape(graph, dinputs, (steps * rows, _GATES * units))
    return [dinputs, matmul(graph, read, columns, transpose_a=True), dh0, dc0]


def _of_steps(x: Expr) -> list[Expr]:
    """Return the matrices (N, K) of x (T, N, K)."""
    steps, *shape = x.spec.shape
    return [Expr(x.graph, reshape(x.graph, each, shape)) for each in split(x.graph, x.tensor, 0, [1] * steps)]


def _of_gates(x: Expr) -> list[Expr]:
    """Return the matrices (N, H) of the four gates in x (N, 4 H)."""
    units = x.spec.shape[1] // _GATES
    return [Expr(x.graph, each) for each in split(x.graph, x.tensor, 1, [units] * _GATES)]


def _joined(parts: Sequence[Expr], axis: int) -> Expr:
    return Expr(parts[0].graph, concat(parts[0].graph, [each.tensor for each in parts], axis))


def _stacked(parts: Sequence[Expr]) -> Expr:
    """Return (T, N, K) for T matrices (N, K)."""
    return _joined([apply(reshape, each, shape=(1, *each.spec.shape)) for each in parts], 0)


@decomposition
def _decompose(attributes: Attributes, inputs: Expr, weights: Expr, h: Expr, c: Expr) -> Sequence[Expr]:
    steps = []
    for added in _of_steps(inputs):
        of_i, of_f, of_g, of_o = _of_gates(added + apply(matmul, h, weights))
        i, f, g, o = apply(sigmoid, of_i), apply(sigmoid, of_f), apply(tanh, of_g), apply(sigmoid, of_o)
        c = f * c + i * g
        h = o * apply(tanh, c)
        steps.append((h, c, _joined([i, f, g, o], 1)))
    return [_stacked(each) for each in zip(*steps, strict=True)]


@decomposition
def _decompose_gradient(
    attributes: Attributes, dh: Expr, dc: Expr, weights: Expr, c0: Expr, c: Expr, gates: Expr, *dgates: Expr
) -> Sequence[Expr]:
    cells = [c0, *_of_steps(c)]
    later_h: Expr | None = None
    later_c: Expr | None = None
    found = []
    rows = zip(_of_steps(dh), _of_steps(dc), cells, cells[1:], *map(_of_steps, (gates, *dgates)), strict=False)
    for of_h, of_c, before, cell, values, *given in reversed(list(rows)):
        i, f, g, o = _of_gates(values)
        into_h = of_h if later_h is None else of_h + later_h
        size = apply(tanh, cell)
        into_c = of_c + into_h * o * (1.0 - size * size)
        into_c = into_c if later_c is None else into_c + later_c
        into = [into_c * g, into_c * before, into_c * i, into_h * size]
        for each in given:
            into = [own + more for own, more in zip(into, _of_gates(each), strict=True)]
        slopes = [i * (1.0 - i), f * (1.0 - f), 1.0 - g * g, o * (1.0 - o)]
        found.append(_joined([own * slope for own, slope in zip(into, slopes, strict=True)], 1))
        later_h, later_c = apply(matmul, found[-1], weights, transpose_b=True), into_c * f
    assert later_h is not None, "a sequence has at least one step"
    assert later_c is not None, "a sequence has at least one step"
    return [_stacked(found[::-1]), later_h, later_c]


def _flops_of(gates: TensorSpec) -> int:
    """Return the number of operations of the products with the weights: a multiplication and an addition per term."""
    return 2 * gates.size * (gates.shape[2] // _GATES)


register(
    OpDef("lstm", _infer, _gradient, 4, {}, lambda inputs, *_: _flops_of(inputs[0]), decompose=_decompose),
    OpDef(
        "lstm_gradient",
        _infer_gradient,
        ByDecomposition(),
        arity=None,
        flops=lambda inputs, *_: _flops_of(inputs[5]),
        decompose=_decompose_gradient,
    ),
)
