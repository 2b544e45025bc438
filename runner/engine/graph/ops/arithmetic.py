"""Element-wise arithmetic, comparison and selection with NumPy broadcasting. Dtypes are never promoted.

In a tie, maximum and minimum pass the whole gradient to the first operand. This choice is deterministic, and the two
partial gradients always add up to the gradient of the output.
"""

import math
from collections.abc import Sequence

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.node import Node
from runner.engine.graph.op import Builder, NotDifferentiable, OpDef, Specs, expect, register
from runner.engine.graph.ops.common import (
    NUMERIC,
    binary,
    broadcast_shape,
    elementwise_gradient,
    expect_same_dtype,
    like_input,
    single_output,
    unary,
)
from runner.engine.graph.tensor import DTYPES, Tensor, TensorSpec


def _div_gradient(dy: Expr, y: Expr, a: Expr, b: Expr) -> Sequence[Expr]:
    da = dy / b
    return [da, -(da * y)]


add = binary("add", "Add a + b.", lambda dy, y, a, b: (dy, dy), NUMERIC)
sub = binary("sub", "Add a - b.", lambda dy, y, a, b: (dy, -dy), NUMERIC)
mul = binary("mul", "Add a * b.", lambda dy, y, a, b: (dy * b, dy * a), NUMERIC)
div = binary("div", "Add a / b, floats only.", _div_gradient)
neg = unary("neg", "Add -x.", lambda dy, y, x: -dy, NUMERIC)
exp = unary("exp", "Add e ** x.", lambda dy, y, x: dy * y)
log = unary("log", "Add the natural logarithm of x.", lambda dy, y, x: dy / x)
log1p = unary("log1p", "Add log(1 + x), accurate for small x.", lambda dy, y, x: dy / (1.0 + x))
erf = unary(
    "erf",
    "Add the error function of x, 2 / sqrt(pi) times the integral of e ** -(t * t) for t from 0 to x.",
    lambda dy, y, x: dy * (2.0 / math.sqrt(math.pi) * (-x.square()).exp()),
)
sqrt = unary("sqrt", "Add the square root of x.", lambda dy, y, x: 0.5 * dy / y)
square = unary("square", "Add x * x.", lambda dy, y, x: dy * (2.0 * x), NUMERIC)
abs = unary(  # noqa: A001 - the op's name
    "abs", "Add |x|. The derivative is sign(x), which is 0 at 0.", lambda dy, y, x: dy * x.sign(), NUMERIC
)
sign = unary(
    "sign",
    "Add the sign of x: -1, 0 or 1. The derivative is 0 or undefined, so no gradient flows.",
    lambda dy, y, x: None,
    NUMERIC,
)


def pow(graph: Builder, x: Tensor, exponent: float, *, name: str | None = None) -> Tensor:  # noqa: A001 - the op's name
    """Add a node for x ** exponent, with a fixed exponent."""
    return graph.add("pow", [x], {"exponent": exponent}, name=name)[0]


def scale(graph: Builder, x: Tensor, factor: float) -> Tensor:
    """Add nodes for x * factor, with a fixed factor."""
    return (Expr(graph, x) * factor).tensor


@single_output
def _pow_gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    exponent = node.attributes["exponent"]
    if exponent == 0.0:
        return [None]
    if exponent == 1.0:
        return [dy]
    x = Expr(graph, node.inputs[0])
    return [(Expr(graph, dy) * (exponent * x ** (exponent - 1.0))).tensor]


register(OpDef("pow", like_input(), _pow_gradient, 1, {"exponent": "float"}))


def select(graph: Builder, condition: Tensor, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a node that selects a where the bool ``condition`` is true, and b elsewhere; a and b have the same dtype."""
    return graph.add("select", [condition, a, b], name=name)[0]


def _infer_select(condition: TensorSpec, a: TensorSpec, b: TensorSpec) -> Specs:
    expect(condition.dtype == "bool", "a condition of dtype bool", condition)
    expect_same_dtype([a, b])
    return [TensorSpec(broadcast_shape([condition, a, b]), a.dtype)]


def _route(condition: Expr, dy: Expr) -> tuple[Expr, Expr]:
    """Return dy twice: with zeros where the condition is false, and with zeros where the condition is true."""
    zero = dy.scalar(0.0)
    return apply(select, condition, dy, zero), apply(select, condition, zero, dy)


_TRUTH = NotDifferentiable("its output is a truth value")
_SELECT = elementwise_gradient(lambda dy, y, condition, a, b: (None, *_route(condition, dy)))

greater = binary("greater", "Add a > b, bool.", _TRUTH, DTYPES, result="bool")
greater_equal = binary("greater_equal", "Add a >= b, bool.", _TRUTH, DTYPES, result="bool")
less = binary("less", "Add a < b, bool.", _TRUTH, DTYPES, result="bool")
equal = binary("equal", "Add a == b, bool.", _TRUTH, DTYPES, result="bool")
register(OpDef("select", _infer_select, _SELECT, arity=3))
maximum = binary(
    "maximum",
    "Add the greater of a and b, or NaN if either is NaN. If a == b, the gradient goes to a.",
    lambda dy, y, a, b: _route(apply(greater_equal, a, b), dy),
    NUMERIC,
)
minimum = binary(
    "minimum",
    "Add the lesser of a and b, or NaN if either is NaN. If a == b, the gradient goes to a.",
    lambda dy, y, a, b: _route(apply(greater_equal, b, a), dy),
    NUMERIC,
)
