"""Arithmetic on the tensors of a graph with Python's operators, so that update rules and gradients read as formulas.

For expressions v, g and rate, ``0.9 * v - g * rate`` adds nodes of the ops fill, mul, mul and sub, in this order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner.engine.graph.op import Builder
from runner.engine.graph.tensor import Tensor, TensorSpec


@dataclass(frozen=True, eq=False)
class Expr:
    """A tensor and the graph it belongs to; operators and methods add nodes and return the result.

    Both operands belong to one graph, have the same dtype and broadcast as in NumPy. An operand that is a number
    becomes a scalar constant of the other operand's dtype. The constant is the second input of a sum or a product.
    """

    graph: Builder
    tensor: Tensor

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype."""
        return self.graph.spec(self.tensor)

    def __add__(self, other: "Expr | float") -> "Expr":
        return self._join("add", other)

    __radd__ = __add__

    def __sub__(self, other: "Expr | float") -> "Expr":
        return self._join("sub", other)

    def __rsub__(self, other: float) -> "Expr":
        return self.scalar(other)._join("sub", self)

    def __mul__(self, other: "Expr | float") -> "Expr":
        return self._join("mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: "Expr | float") -> "Expr":
        return self._join("div", other)

    def __rtruediv__(self, other: float) -> "Expr":
        return self.scalar(other)._join("div", self)

    def __pow__(self, exponent: float) -> "Expr":
        return self._add("pow", self.tensor, exponent=exponent)

    def __neg__(self) -> "Expr":
        return self._add("neg", self.tensor)

    def __abs__(self) -> "Expr":
        return self._add("abs", self.tensor)

    def exp(self) -> "Expr":
        """Add a node for e ** self."""
        return self._add("exp", self.tensor)

    def sign(self) -> "Expr":
        """Add a node for the sign of each element: -1, 0 or 1."""
        return self._add("sign", self.tensor)

    def sqrt(self) -> "Expr":
        """Add a node for the square root."""
        return self._add("sqrt", self.tensor)

    def square(self) -> "Expr":
        """Add a single node for self * self."""
        return self._add("square", self.tensor)

    def scalar(self, value: float, dtype: str | None = None) -> "Expr":
        """Add a scalar constant, of the dtype of this tensor by default."""
        return self._add("fill", value=float(value), shape=(), dtype=dtype or self.spec.dtype)

    def _add(self, op: str, *operands: Tensor, **attributes: Any) -> "Expr":
        return Expr(self.graph, self.graph.add(op, operands, attributes)[0])

    def _join(self, op: str, other: "Expr | float") -> "Expr":
        right = other if isinstance(other, Expr) else self.scalar(other)
        return self._add(op, self.tensor, right.tensor)


def apply(op: Callable[..., Tensor], *operands: Expr, **options: Any) -> Expr:
    """Add a node by calling a function of :mod:`runner.engine.graph.ops`, for example ``apply(ops.maximum, x, y)``.

    operands: one or more tensor arguments of ``op``. options: the other arguments of ``op``.
    """
    graph = operands[0].graph
    return Expr(graph, op(graph, *(operand.tensor for operand in operands), **options))
