"""Products of pairs of bfloat16 numbers by the AVX-512 instructions for them.

A pair is two neighbouring terms of a sum; an instruction adds both products to a float32 number. It treats subnormal
numbers as zero, and so does the rounding to bfloat16 here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import binding, ir

from runner.kernels.cpu.machine_code.arithmetic import Lanes, Value
from runner.kernels.cpu.machine_code.counting import INDEX, repeat
from runner.kernels.cpu.machine_code.elements import STORED, load
from runner.kernels.cpu.machine_code.loops import element

LANES = Lanes("float32", 16)
"""The sums of one instruction."""

PAIR = ir.IntType(32)
"""Type of a pair in memory: the first of both lies in the lower half."""

PAIRS = LANES.of(PAIR)
"""One pair per lane."""

VECTOR_BYTES = 64


class _BFloat(ir.Type):  # type: ignore[misc]  # llvmlite has no types
    """The vector type that llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_HALVES = ir.VectorType(_BFloat(), 2 * LANES.count)
_DOT = "llvm.x86.avx512bf16.dpbf16ps.512"
_CAST = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"


def pay() -> bool:
    """Whether this CPU has these instructions but none that multiply blocks, with which oneDNN is faster."""
    found = binding.get_host_cpu_features()
    return bool(found.get("avx512bf16") and found.get("avx512bw")) and not found.get("amx-bf16")


def add_products(builder: ir.IRBuilder, total: Value, a: Value, b: Value) -> Value:
    """Append, in every lane, the sum of ``total`` and both products of the pairs a and b."""
    kind = ir.FunctionType(LANES.type, [LANES.type, _HALVES, _HALVES])
    return _call(builder, _DOT, kind, [total, builder.bitcast(a, _HALVES), builder.bitcast(b, _HALVES)])


def spread_pair(builder: ir.IRBuilder, place: Value) -> Value:
    """Append a load of one pair into every lane."""
    pair = builder.load(place, typ=PAIR, align=4)
    first = builder.insert_element(ir.Constant(PAIRS, ir.Undefined), pair, ir.IntType(32)(0))
    return builder.shuffle_vector(first, first, ir.Constant(PAIRS, [0] * LANES.count))


def neighbours(builder: ir.IRBuilder, place: Value) -> Value:
    """Append the load of consecutive float32 numbers, rounded, as pairs of neighbours."""
    above = element(builder, place, STORED[LANES.dtype], INDEX(LANES.count))
    return builder.bitcast(_cast(builder, place, above), PAIRS)


def stacked(builder: ir.IRBuilder, upper: Value, lower: Value) -> Value:
    """Append the load of float32 numbers of two rows, rounded, as pairs of one number from each row."""
    halves = builder.bitcast(_cast(builder, upper, lower), ir.VectorType(ir.IntType(16), 2 * LANES.count))
    order = [place + row * LANES.count for place in range(LANES.count) for row in (0, 1)]
    mixed = builder.shuffle_vector(halves, halves, ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order))
    return builder.bitcast(mixed, PAIRS)


def _cast(builder: ir.IRBuilder, first: Value, second: Value) -> Value:
    """The float32 numbers of a vector at each of two places, rounded to bfloat16."""
    low, high = (load(builder, LANES, LANES.dtype, place) for place in (first, second))
    return _call(builder, _CAST, ir.FunctionType(_HALVES, [LANES.type] * 2), [high, low])


def _call(builder: ir.IRBuilder, name: str, kind: ir.FunctionType, operands: list[Value]) -> Value:
    return builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), operands)


class Near:
    """Vectors in stack memory, few enough for the first-level cache."""

    def __init__(self, builder: ir.IRBuilder, kind: ir.Type, count: int) -> None:
        """kind: PAIRS or sums. The allocation is appended at the start of the function."""
        self._builder, self._kind, self._count = builder, kind, count
        self.place = builder.alloca(ir.ArrayType(kind, count))
        self.place.align = VECTOR_BYTES
        # llvmlite allows only this element type.
        self.place.type = ir.PointerType()

    def load(self, index: Value) -> Value:
        """Append the load of a vector."""
        return self._builder.load(self._at(index), typ=self._kind, align=VECTOR_BYTES)

    def store(self, value: Value, index: Value) -> None:
        """Append the store of a vector."""
        self._builder.store(value, self._at(index), align=VECTOR_BYTES)

    def clear(self) -> None:
        """Append the store of zeros."""
        zero = ir.Constant(self._kind, None)
        repeat(self._builder, INDEX(0), INDEX(self._count), 1, lambda index: self.store(zero, index))

    def _at(self, index: Value) -> Value:
        return element(self._builder, self.place, self._kind, index)


def groups(total: int, most: int) -> Sequence[range]:
    """0..total-1 in ranges of at most ``most``."""
    return [range(begin, min(begin + most, total)) for begin in range(0, total, most)]
