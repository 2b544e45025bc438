"""Element-wise comparison and choice with NumPy broadcasting.

Ties of maximum and minimum give the whole gradient to the first operand: deterministic, and the two partial
gradients always add up to the gradient of the output.
"""

from collections.abc import Sequence

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.op import Attributes, Builder, NotDifferentiable, OpDef, expect, register
from runner.engine.graph.ops.common import NUMERIC, binary, broadcast_shape, elementwise_gradient, expect_same_dtype
from runner.engine.graph.tensor import DTYPES, Tensor, TensorSpec


def select(graph: Builder, condition: Tensor, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a where the bool ``condition`` holds and b elsewhere; a and b have one dtype."""
    return graph.add("select", [condition, a, b], name=name)[0]


def _infer_select(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    condition, a, b = specs
    expect(condition.dtype == "bool", "a condition of dtype bool", condition)
    expect_same_dtype([a, b])
    return [TensorSpec(broadcast_shape(specs), a.dtype)]


def _route(condition: Expr, dy: Expr) -> tuple[Expr, Expr]:
    """Split a gradient into its part where the condition holds and its part elsewhere."""
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
    "Add the greater of a and b; a tie gives its gradient to a. NaN in either operand is kept.",
    lambda dy, y, a, b: _route(apply(greater_equal, a, b), dy),
    NUMERIC,
)
minimum = binary(
    "minimum",
    "Add the lesser of a and b; a tie gives its gradient to a. NaN in either operand is kept.",
    lambda dy, y, a, b: _route(apply(greater_equal, b, a), dy),
    NUMERIC,
)
