"""Element-wise arithmetic with NumPy broadcasting. Both operands have one dtype; nothing is promoted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.engine.graph.expression import Expr
from runner.engine.graph.node import Node
from runner.engine.graph.op import Builder, OpDef, register
from runner.engine.graph.ops.common import NUMERIC, broadcast_inputs, elementwise_gradient, like_input, single_output
from runner.engine.graph.tensor import FLOATS, Tensor


def add(graph: Builder, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a + b."""
    return graph.add("add", [a, b], name=name)[0]


def sub(graph: Builder, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a - b."""
    return graph.add("sub", [a, b], name=name)[0]


def mul(graph: Builder, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a * b."""
    return graph.add("mul", [a, b], name=name)[0]


def div(graph: Builder, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a / b, floats only."""
    return graph.add("div", [a, b], name=name)[0]


def neg(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add -x."""
    return graph.add("neg", [x], name=name)[0]


def exp(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add e ** x."""
    return graph.add("exp", [x], name=name)[0]


def log(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add the natural logarithm of x."""
    return graph.add("log", [x], name=name)[0]


def log1p(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add log(1 + x), exact for small x."""
    return graph.add("log1p", [x], name=name)[0]


def sqrt(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add the square root of x."""
    return graph.add("sqrt", [x], name=name)[0]


def square(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add x * x."""
    return graph.add("square", [x], name=name)[0]


def abs(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:  # noqa: A001 - the op's name
    """Add |x|; its derivative is sign(x), which is 0 at 0."""
    return graph.add("abs", [x], name=name)[0]


def sign(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add -1, 0 or 1 by the sign of x; its derivative is 0 wherever it exists, so no gradient flows."""
    return graph.add("sign", [x], name=name)[0]


def pow(graph: Builder, x: Tensor, exponent: float, *, name: str | None = None) -> Tensor:  # noqa: A001 - the op's name
    """Add x ** exponent for a fixed exponent."""
    return graph.add("pow", [x], {"exponent": exponent}, name=name)[0]


def scale(graph: Builder, x: Tensor, factor: float) -> Tensor:
    """Add x * factor for a fixed factor."""
    return (Expr(graph, x) * factor).tensor


def _register(
    op: str, arity: int, gradient: Callable[..., Expr | Sequence[Expr] | None], dtypes: Sequence[str] = FLOATS
) -> None:
    infer = like_input(dtypes) if arity == 1 else broadcast_inputs(dtypes)
    register(OpDef(op, infer, elementwise_gradient(gradient), arity))


def _div_gradient(dy: Expr, y: Expr, a: Expr, b: Expr) -> Sequence[Expr]:
    da = dy / b
    return [da, -(da * y)]


@single_output
def _pow_gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    exponent = node.attributes["exponent"]
    if exponent == 0.0:
        return [None]
    if exponent == 1.0:
        return [dy]
    x = Expr(graph, node.inputs[0])
    return [(Expr(graph, dy) * (exponent * x ** (exponent - 1.0))).tensor]


_register("add", 2, lambda dy, y, a, b: (dy, dy), NUMERIC)
_register("sub", 2, lambda dy, y, a, b: (dy, -dy), NUMERIC)
_register("mul", 2, lambda dy, y, a, b: (dy * b, dy * a), NUMERIC)
_register("div", 2, _div_gradient)
_register("neg", 1, lambda dy, y, x: -dy, NUMERIC)
_register("exp", 1, lambda dy, y, x: dy * y)
_register("log", 1, lambda dy, y, x: dy / x)
_register("log1p", 1, lambda dy, y, x: dy / (1.0 + x))
_register("sqrt", 1, lambda dy, y, x: 0.5 * dy / y)
_register("square", 1, lambda dy, y, x: dy * (2.0 * x), NUMERIC)
_register("abs", 1, lambda dy, y, x: dy * x.sign(), NUMERIC)
_register("sign", 1, lambda dy, y, x: None, NUMERIC)
register(OpDef("pow", like_input(), _pow_gradient, 1, {"exponent": "float"}))
