"""The functions of the element-wise language as LLVM instructions, for one number or a vector of them.

Every function consists of IEEE operations that are rounded separately: without fast-math flags LLVM neither contracts
nor reorders them. NaN propagates as in NumPy, and of two zeros with different signs a maximum or minimum is the one
that NumPy returns on x86-64. The payload of a NaN is unspecified.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

Value = Any
"""An ``ir.Value``; llvmlite has no types."""

_ELEMENTS = {"float32": (ir.FloatType(), "f32"), "float64": (ir.DoubleType(), "f64")}


@dataclass(frozen=True)
class Lanes:
    """``count`` numbers of one dtype, computed together; a count of 1 is a bare number."""

    dtype: str
    count: int

    @property
    def element(self) -> ir.Type:
        """Type of one number."""
        return _ELEMENTS[self.dtype][0]

    @property
    def type(self) -> ir.Type:
        """Type of all numbers together."""
        return self.of(self.element)

    def of(self, element: ir.Type) -> ir.Type:
        """Type of another element type in every lane."""
        return element if self.count == 1 else ir.VectorType(element, self.count)

    def integer(self, value: int) -> ir.Constant:
        """A 32-bit integer in every lane."""
        return ir.Constant(self.of(ir.IntType(32)), value if self.count == 1 else [value] * self.count)

    def constant(self, value: float) -> ir.Constant:
        """A literal, rounded to the dtype, in every lane."""
        with np.errstate(over="ignore"):
            rounded = float(np.dtype(self.dtype).type(value))
        return ir.Constant(self.type, rounded if self.count == 1 else [rounded] * self.count)

    def spread(self, builder: ir.IRBuilder, number: Value) -> Value:
        """A bare number in every lane."""
        if self.count == 1:
            return number
        first = builder.insert_element(ir.Constant(self.type, ir.Undefined), number, ir.IntType(32)(0))
        nowhere = ir.Constant(ir.VectorType(ir.IntType(32), self.count), [0] * self.count)
        return builder.shuffle_vector(first, first, nowhere)

    def intrinsic(self, builder: ir.IRBuilder, name: str, *operands: Value) -> Value:
        """Call ``llvm.<name>``."""
        suffix = _ELEMENTS[self.dtype][1]
        full = f"llvm.{name}.{suffix}" if self.count == 1 else f"llvm.{name}.v{self.count}{suffix}"
        kind = ir.FunctionType(self.type, [self.type] * len(operands))
        return builder.call(builder.module.globals.get(full) or ir.Function(builder.module, kind, full), operands)


def _maximum(builder: ir.IRBuilder, lanes: Lanes, a: Value, b: Value) -> Value:
    return _extreme(builder, ">", a, b)


def _minimum(builder: ir.IRBuilder, lanes: Lanes, a: Value, b: Value) -> Value:
    return _extreme(builder, "<", a, b)


def _extreme(builder: ir.IRBuilder, wins: str, a: Value, b: Value) -> Value:
    # Of equals, as of +0 and -0, the second is taken. A comparison with NaN fails: b is taken where it is one.
    best = builder.select(builder.fcmp_ordered(wins, a, b), a, b)
    return builder.select(builder.fcmp_unordered("uno", a, a), a, best)


def _relu(builder: ir.IRBuilder, lanes: Lanes, x: Value) -> Value:
    return _extreme(builder, ">", x, lanes.constant(0.0))


def _relu_gradient(builder: ir.IRBuilder, lanes: Lanes, dy: Value, y: Value) -> Value:
    zero = lanes.constant(0.0)
    return builder.select(builder.fcmp_ordered(">", y, zero), dy, zero)


EMIT: dict[str, Callable[..., Value]] = {
    "add": lambda builder, lanes, a, b: builder.fadd(a, b),
    "sub": lambda builder, lanes, a, b: builder.fsub(a, b),
    "mul": lambda builder, lanes, a, b: builder.fmul(a, b),
    "div": lambda builder, lanes, a, b: builder.fdiv(a, b),
    "maximum": _maximum,
    "minimum": _minimum,
    "neg": lambda builder, lanes, x: builder.fneg(x),
    "square": lambda builder, lanes, x: builder.fmul(x, x),
    "sqrt": lambda builder, lanes, x: lanes.intrinsic(builder, "sqrt", x),
    "abs": lambda builder, lanes, x: lanes.intrinsic(builder, "fabs", x),
    "relu": _relu,
    "relu_gradient": _relu_gradient,
}
"""Function of the language -> (builder, lanes, operands): appends its instructions and returns the result."""
