"""LLVM instructions: functions of the element-wise language on vectors, loads and stores of elements, and loops.

Every function consists of IEEE operations that are rounded separately: without fast-math flags LLVM neither contracts
nor reorders operations. NaN propagates as in NumPy. The maximum or minimum of +0 and -0 is the zero that NumPy returns
on x86-64. The payload of a NaN is unspecified.

A bfloat16 number is the upper half of a float32 number. Computations are in float32; a store rounds to the nearest,
ties to even. The conversion instructions of CPUs are not used because they flush subnormal numbers to zero.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from runner.kernels.elementwise import DERIVED

Value = Any
"""An ``ir.Value``; llvmlite has no type annotations."""

INDEX = ir.IntType(64)
"""Type of loop counters."""

STORED: dict[str, ir.Type] = {"float32": ir.FloatType(), "float64": ir.DoubleType(), "bfloat16": ir.IntType(16)}
"""dtype -> type of an element in memory."""

ITEMSIZE = {"float32": 4, "float64": 8, "bfloat16": 2}
"""dtype -> bytes of an element."""

_SUFFIXES = {"float32": "f32", "float64": "f64"}
_HALF_BITS = 16


def declared(builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
    """Return the declaration of an external function in the module; the first request adds it."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def element(builder: ir.IRBuilder, base: Value, kind: ir.Type, index: Value) -> Value:
    """Append instructions for the address of an array element; return the address."""
    return builder.gep(base, [index], source_etype=kind)


@dataclass(frozen=True)
class Lanes:
    """``count`` numbers of one dtype that are computed together: a vector, or a scalar if ``count`` is 1."""

    dtype: str
    count: int

    @classmethod
    def filling(cls, dtype: str, vector_bytes: int) -> "Lanes":
        """Return the lanes of a vector of ``vector_bytes`` bytes."""
        return cls(dtype, vector_bytes // ITEMSIZE[dtype])

    @property
    def type(self) -> ir.Type:
        """Type of all numbers together."""
        return self.of(STORED[self.dtype])

    def of(self, element: ir.Type) -> ir.Type:
        """Return the type with ``element`` in every lane."""
        return element if self.count == 1 else ir.VectorType(element, self.count)

    def integer(self, value: int) -> ir.Constant:
        """Return a constant with a 32-bit integer in every lane."""
        return ir.Constant(self.of(ir.IntType(32)), value if self.count == 1 else [value] * self.count)

    def constant(self, value: float) -> ir.Constant:
        """Return a constant with a literal, rounded to the dtype, in every lane."""
        with np.errstate(over="ignore"):
            rounded = float(np.dtype(self.dtype).type(value))
        return ir.Constant(self.type, rounded if self.count == 1 else [rounded] * self.count)

    def spread(self, builder: ir.IRBuilder, number: Value) -> Value:
        """Append instructions that copy a scalar to every lane."""
        if self.count == 1:
            return number
        first = builder.insert_element(ir.Constant(self.of(number.type), ir.Undefined), number, ir.IntType(32)(0))
        nowhere = ir.Constant(ir.VectorType(ir.IntType(32), self.count), [0] * self.count)
        return builder.shuffle_vector(first, first, nowhere)

    def intrinsic(self, builder: ir.IRBuilder, name: str, *operands: Value) -> Value:
        """Append a call of the intrinsic ``llvm.<name>``."""
        vector = "" if self.count == 1 else f"v{self.count}"
        full = f"llvm.{name}.{vector}{_SUFFIXES[self.dtype]}"
        return builder.call(declared(builder, full, self.type, *[self.type] * len(operands)), operands)

    def load(self, builder: ir.IRBuilder, dtype: str, base: Value, index: Value | None = None) -> Value:
        """Append a load of adjacent elements of ``dtype``, one per lane.

        base: address of the first of these elements or, with ``index``, of element 0 of their array.
        """
        place = base if index is None else element(builder, base, STORED[dtype], index)
        stored = builder.load(place, typ=self.of(STORED[dtype]), align=ITEMSIZE[dtype])
        if dtype != "bfloat16":
            return stored
        bits = builder.zext(stored, self.of(ir.IntType(32)))
        return builder.bitcast(builder.shl(bits, self.integer(_HALF_BITS)), self.type)

    def store(self, builder: ir.IRBuilder, dtype: str, value: Value, base: Value, index: Value | None = None) -> None:
        """Append a store of the elements in all lanes. dtype, base and index: as in :meth:`load`."""
        place = base if index is None else element(builder, base, STORED[dtype], index)
        stored = _rounded(builder, self, value) if dtype == "bfloat16" else value
        builder.store(stored, place, align=ITEMSIZE[dtype])


def _extreme(builder: ir.IRBuilder, wins: str, a: Value, b: Value) -> Value:
    # Of equal numbers, such as +0 and -0, b is selected. An ordered comparison with NaN fails, so a NaN in b is kept.
    best = builder.select(builder.fcmp_ordered(wins, a, b), a, b)
    return builder.select(builder.fcmp_unordered("uno", a, a), a, best)


def _relu_gradient(builder: ir.IRBuilder, lanes: Lanes, dy: Value, y: Value) -> Value:
    zero = lanes.constant(0.0)
    return builder.select(builder.fcmp_ordered(">", y, zero), dy, zero)


def _erf(builder: ir.IRBuilder, lanes: Lanes, x: Value) -> Value:
    def apply(function: str, *operands: Value) -> Value:
        given = [lanes.constant(each) if isinstance(each, float) else each for each in operands]
        return EMIT[function](builder, lanes, *given)

    return DERIVED["erf"](apply, x)


EMIT: dict[str, Callable[..., Value]] = {
    "add": lambda builder, lanes, a, b: builder.fadd(a, b),
    "sub": lambda builder, lanes, a, b: builder.fsub(a, b),
    "mul": lambda builder, lanes, a, b: builder.fmul(a, b),
    "div": lambda builder, lanes, a, b: builder.fdiv(a, b),
    "maximum": lambda builder, lanes, a, b: _extreme(builder, ">", a, b),
    "minimum": lambda builder, lanes, a, b: _extreme(builder, "<", a, b),
    "neg": lambda builder, lanes, x: builder.fneg(x),
    "square": lambda builder, lanes, x: builder.fmul(x, x),
    "sqrt": lambda builder, lanes, x: lanes.intrinsic(builder, "sqrt", x),
    "abs": lambda builder, lanes, x: lanes.intrinsic(builder, "fabs", x),
    "relu": lambda builder, lanes, x: _extreme(builder, ">", x, lanes.constant(0.0)),
    "relu_gradient": _relu_gradient,
    "erf": _erf,
}
"""Name of an element-wise function -> a function appending its instructions: (builder, lanes, *operands) -> result."""


def fetch_for_writing(builder: ir.IRBuilder, dtype: str, base: Value, index: Value) -> None:
    """Append a prefetch of an array element that will be read and written soon. Invalid addresses are ignored."""
    word = ir.IntType(32)
    place = element(builder, base, STORED[dtype], index)
    function = declared(builder, "llvm.prefetch.p0", ir.VoidType(), ir.PointerType(), word, word, word)
    builder.call(function, [place, word(_FOR_WRITING), word(_INTO_ALL_CACHES), word(_DATA)])


_FOR_WRITING, _INTO_ALL_CACHES, _DATA = 1, 3, 1


def _rounded(builder: ir.IRBuilder, lanes: Lanes, value: Value) -> Value:
    """Append instructions that round float32 numbers to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = builder.bitcast(value, lanes.of(ir.IntType(32)))
    last = builder.and_(builder.lshr(bits, lanes.integer(_HALF_BITS)), lanes.integer(1))
    # Adding 0x7FFF carries into the upper half if the lower half is more than 0x8000. A lower half of 0x8000 is a tie:
    # the sum with the last kept bit carries if that bit is 1. A carry from the largest finite number gives infinity.
    nearest = builder.add(bits, builder.add(last, lanes.integer(0x7FFF)))
    # A carry could turn a NaN into a number. A NaN is therefore truncated, and a kept bit of its fraction is set to 1.
    quiet = builder.or_(bits, lanes.integer(0x400000))
    is_nan = builder.fcmp_unordered("uno", value, value)
    chosen = builder.select(is_nan, quiet, nearest)
    return builder.trunc(builder.lshr(chosen, lanes.integer(_HALF_BITS)), lanes.of(ir.IntType(16)))


Body = Callable[[Value, list[Value]], Sequence[Value]]
"""(index, values before an iteration) -> values after the iteration; appends the instructions of one iteration."""


def fold(
    builder: ir.IRBuilder, begin: Value, stop: Value, stride: int, initial: Sequence[Value], body: Body
) -> list[Value]:
    """Append ``for (index = begin; index < stop; index += stride) values = body(index, values)``.

    The values start as ``initial``; the function returns the final values. The body may append basic blocks.
    """
    before = builder.block
    inside, after = builder.append_basic_block("inside"), builder.append_basic_block("after")
    builder.cbranch(builder.icmp_signed("<", begin, stop), inside, after)
    builder.position_at_end(inside)
    index = builder.phi(INDEX)
    values = [builder.phi(value.type) for value in initial]
    left = body(index, list(values))
    following = builder.add(index, INDEX(stride))
    end = builder.block
    builder.cbranch(builder.icmp_signed("<", following, stop), inside, after)
    builder.position_at_end(after)
    last = [builder.phi(value.type) for value in initial]
    pairs = zip([*values, *last], [*initial, *initial], [*left, *left], strict=True)
    for phi, first, again in [(index, begin, following), *pairs]:
        phi.add_incoming(first, before)
        phi.add_incoming(again, end)
    return last


def repeat(builder: ir.IRBuilder, begin: Value, stop: Value, stride: int, body: Callable[[Value], None]) -> None:
    """Append ``for (index = begin; index < stop; index += stride) body(index)``."""

    def once(index: Value, values: list[Value]) -> list[Value]:
        body(index)
        return values

    fold(builder, begin, stop, stride, (), once)


def whole_part(builder: ir.IRBuilder, count: Value, lanes: int) -> Value:
    """Return the largest multiple of ``lanes`` that is at most ``count``; ``lanes`` must be a power of two."""
    return builder.and_(count, INDEX(-lanes))
