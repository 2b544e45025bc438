"""Element-wise arithmetic with NumPy broadcasting. Both operands have one dtype; nothing is promoted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes, InferRule, OpDef, register
from runner.engine.ops.common import (
    NUMERIC,
    broadcast_shape,
    broadcasting,
    expect_dtype,
    expect_same_dtype,
    scalar,
    single_output,
)
from runner.engine.tensor import FLOATS, Tensor, TensorSpec


def add(graph: Graph, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a + b."""
    return graph.add("add", [a, b], name=name)[0]


def sub(graph: Graph, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a - b."""
    return graph.add("sub", [a, b], name=name)[0]


def mul(graph: Graph, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a * b."""
    return graph.add("mul", [a, b], name=name)[0]


def div(graph: Graph, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a / b, floats only."""
    return graph.add("div", [a, b], name=name)[0]


def neg(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add -x."""
    return graph.add("neg", [x], name=name)[0]


def exp(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add e ** x."""
    return graph.add("exp", [x], name=name)[0]


def log(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add the natural logarithm of x."""
    return graph.add("log", [x], name=name)[0]


def log1p(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add log(1 + x), exact for small x."""
    return graph.add("log1p", [x], name=name)[0]


def sqrt(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add the square root of x."""
    return graph.add("sqrt", [x], name=name)[0]


def square(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add x * x."""
    return graph.add("square", [x], name=name)[0]


def abs(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:  # noqa: A001 - the op's name
    """Add |x|; its derivative is sign(x), which is 0 at 0."""
    return graph.add("abs", [x], name=name)[0]


def sign(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add -1, 0 or 1 by the sign of x; its derivative is 0 wherever it exists, so no gradient flows."""
    return graph.add("sign", [x], name=name)[0]


def pow(graph: Graph, x: Tensor, exponent: float, *, name: str | None = None) -> Tensor:  # noqa: A001 - the op's name
    """Add x ** exponent for a fixed exponent."""
    return graph.add("pow", [x], {"exponent": exponent}, name=name)[0]


def scale(graph: Graph, x: Tensor, factor: float) -> Tensor:
    """Add x * factor for a fixed factor."""
    return mul(graph, x, scalar(graph, factor, x))


def _binary(op: str, dtypes: Sequence[str]) -> InferRule:
    def infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
        expect_same_dtype(op, specs)
        expect_dtype(op, specs[0], dtypes)
        return [TensorSpec(broadcast_shape(op, specs), specs[0].dtype)]

    return infer


def _unary(op: str, dtypes: Sequence[str]) -> InferRule:
    def infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
        expect_dtype(op, specs[0], dtypes)
        return [specs[0]]

    return infer


def _add_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [dy, dy]


def _sub_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [dy, neg(graph, dy)]


def _mul_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    a, b = node.inputs
    return [mul(graph, dy, b), mul(graph, dy, a)]


def _div_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    b = node.inputs[1]
    da = div(graph, dy, b)
    return [da, neg(graph, mul(graph, da, node[0]))]


def _neg_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [neg(graph, dy)]


def _exp_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [mul(graph, dy, node[0])]


def _log_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [div(graph, dy, node.inputs[0])]


def _log1p_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    x = node.inputs[0]
    return [div(graph, dy, add(graph, x, scalar(graph, 1.0, x)))]


def _sqrt_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [div(graph, scale(graph, dy, 0.5), node[0])]


def _square_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [mul(graph, dy, scale(graph, node.inputs[0], 2.0))]


def _abs_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [mul(graph, dy, sign(graph, node.inputs[0]))]


def _no_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [None]


def _pow_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    exponent = node.attributes["exponent"]
    if exponent == 0.0:
        return [None]
    if exponent == 1.0:
        return [dy]
    slope = scale(graph, pow(graph, node.inputs[0], exponent - 1.0), exponent)
    return [mul(graph, dy, slope)]


def _register_unary(
    op: str,
    rule: Callable[[Graph, Node, Tensor], Sequence[Tensor | None]],
    dtypes: Sequence[str] = FLOATS,
    **attributes: str,
) -> None:
    register(OpDef(op, _unary(op, dtypes), single_output(rule), arity=1, attributes=attributes))


register(OpDef("add", _binary("add", NUMERIC), broadcasting(_add_gradient), arity=2))
register(OpDef("sub", _binary("sub", NUMERIC), broadcasting(_sub_gradient), arity=2))
register(OpDef("mul", _binary("mul", NUMERIC), broadcasting(_mul_gradient), arity=2))
register(OpDef("div", _binary("div", FLOATS), broadcasting(_div_gradient), arity=2))
_register_unary("neg", _neg_gradient, NUMERIC)
_register_unary("exp", _exp_gradient)
_register_unary("log", _log_gradient)
_register_unary("log1p", _log1p_gradient)
_register_unary("sqrt", _sqrt_gradient)
_register_unary("square", _square_gradient, NUMERIC)
_register_unary("abs", _abs_gradient, NUMERIC)
_register_unary("sign", _no_gradient, NUMERIC)
_register_unary("pow", _pow_gradient, exponent="float")
