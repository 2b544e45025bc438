"""dx = dy W', with dy bfloat16, W float32 and cast in blocks.

It is computed as the transpose of W dy', which reads W as it lies. What is turned is no larger than dy and dx.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

from llvmlite import ir

from runner.kernels.cpu.machine_code.arithmetic import Lanes, Value
from runner.kernels.cpu.machine_code.counting import INDEX, fold, repeat
from runner.kernels.cpu.machine_code.elements import STORED, fetch_for_reading, store
from runner.kernels.cpu.machine_code.loops import SLICE, element
from runner.kernels.cpu.machine_code.pairs import (
    LANES,
    PAIR,
    PAIRS,
    Near,
    add_products,
    groups,
    neighbours,
    spread_pair,
)

WIDTH = LANES.count
FLOAT = STORED["float32"]

GRAIN = 8
"""Rows of W that are multiplied together."""

ACROSS = 2
"""Vectors of columns of dy' that are: with the rows, 16 sums in 32 registers, which keeps both multipliers busy."""

LONGEST = 1024
"""Columns of W that are rounded at a time."""

TURNED_GRAIN = 16
"""Pairs of dy that one thread turns at least: whole lines."""


@dataclass(frozen=True)
class Backward:
    """dy (rows, columns), bfloat16, and W (inner, columns), both extents multiples of 32.

    dtype: of dx (rows, inner), bfloat16 or float32.
    """

    rows: int
    inner: int
    columns: int
    dtype: str

    @property
    def vectors(self) -> int:
        """Vectors of a row of dy', the last one filled with zeros."""
        return -(-self.rows // WIDTH)

    @property
    def padded(self) -> int:
        """Columns of dy', zeros included."""
        return self.vectors * WIDTH

    @property
    def turned_bytes(self) -> int:
        """Memory of dy' as pairs: (columns / 2, padded)."""
        return 2 * self.columns * self.padded

    @property
    def call_group(self) -> int:
        """Columns of W that are rounded at a time: as many every time."""
        return gcd(self.columns, LONGEST)


def write_turning(backward: Backward) -> str:
    """The module in LLVM's language; its ``slice`` puts a range of pairs of columns of dy into dy'."""
    module = ir.Module("matmul_cast_turning")
    function = ir.Function(module, SLICE, "slice")
    arrays, begin, end = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    dy, turned = (builder.load(element(builder, arrays, INDEX, INDEX(k)), typ=ir.PointerType()) for k in range(2))
    for row in range(backward.padded):

        def one(column: Value, row: int = row) -> None:
            pair: Value = PAIR(0)
            if row < backward.rows:
                index = builder.add(INDEX(row * backward.columns // 2), column)
                pair = builder.load(element(builder, dy, PAIR, index), typ=PAIR, align=4)
            index = builder.add(builder.mul(column, INDEX(backward.padded)), INDEX(row))
            builder.store(pair, element(builder, turned, PAIR, index), align=4)

        repeat(builder, begin, end, 1, one)
    builder.ret_void()
    return str(module)


def write_module(backward: Backward) -> str:
    """The module in LLVM's language; its function ``slice`` does a range of rows of W, of a multiple of 8."""
    module = ir.Module("matmul_cast_backward")
    _Writer(backward, ir.Function(module, SLICE, "slice")).write()
    return str(module)


class _Writer:
    """Appends the instructions of ``slice(arrays, begin, end)``; arrays are dy' as pairs, W and dx.

    weights: a stretch of some rows of W as pairs, row by row. sums: of these rows, row by row.
    """

    def __init__(self, backward: Backward, function: ir.Function) -> None:
        self._backward = backward
        self._steps = backward.call_group // 2
        self._builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        arrays, self._begin, self._end = function.args
        self._turned, self._w, self._dx = (
            builder.load(element(builder, arrays, INDEX, INDEX(k)), typ=ir.PointerType()) for k in range(3)
        )
        self._weights = Near(builder, PAIRS, GRAIN * self._steps // WIDTH)
        self._sums = Near(builder, LANES.type, GRAIN * backward.vectors)

    def write(self) -> None:
        """Some rows of W after the other."""
        repeat(self._builder, self._begin, self._end, GRAIN, self._rows)
        self._builder.ret_void()

    def _rows(self, row: Value) -> None:
        """Stretch by stretch of some rows of W, then what they give."""
        builder, backward = self._builder, self._backward
        self._sums.clear()

        def call_group(column: Value) -> None:
            for line in range(GRAIN):
                self._round(row, line, column)
            ahead = self._following(row, column)
            for vectors in groups(backward.vectors, ACROSS):
                self._tile(vectors, column, ahead)

        repeat(builder, INDEX(0), INDEX(backward.columns), backward.call_group, call_group)
        repeat(builder, INDEX(0), INDEX(backward.rows), 1, lambda column: self._finish(row, column))

    def _round(self, row: Value, line: int, column: Value) -> None:
        """A stretch of the row that is ``line`` below ``row``."""
        builder, per_row = self._builder, self._steps // WIDTH
        start = builder.add(self._start(self._plus(row, line)), column)

        def one(vector: Value) -> None:
            index = builder.add(start, builder.mul(vector, INDEX(2 * WIDTH)))
            self._weights.store(
                neighbours(builder, element(builder, self._w, FLOAT, index)), self._plus(vector, line * per_row)
            )

        repeat(builder, INDEX(0), INDEX(per_row), 1, one)

    def _following(self, row: Value, column: Value) -> Value:
        """Index in W of where the next stretch begins: in these rows, or in the following ones."""
        builder = self._builder
        after = self._plus(column, self._backward.call_group)
        is_last = builder.icmp_signed(">=", after, INDEX(self._backward.columns))
        following = builder.select(is_last, self._plus(row, GRAIN), row)
        return builder.add(self._start(following), builder.select(is_last, INDEX(0), after))

    def _tile(self, vectors: range, column: Value, ahead: Value) -> None:
        """Add what a stretch contributes to some vectors of sums; meanwhile the first ask for the next stretch."""
        builder = self._builder
        places = [INDEX(line * self._backward.vectors + vector) for line, vector in product(range(GRAIN), vectors)]

        def term(step: Value, sums: Sequence[Value]) -> Sequence[Value]:
            if vectors.start == 0:
                fetch_for_reading(builder, self._line_ahead(ahead, step))
            return self._products(vectors, column, step, sums)

        sums = fold(builder, INDEX(0), INDEX(self._steps), 1, [self._sums.load(place) for place in places], term)
        for place, total in zip(places, sums, strict=True):
            self._sums.store(total, place)

    def _line_ahead(self, ahead: Value, step: Value) -> Value:
        """Place of one of the lines of the next stretch, of which there are as many as steps."""
        builder, per_row = self._builder, self._backward.call_group // WIDTH
        line, place = builder.udiv(step, INDEX(per_row)), builder.urem(step, INDEX(per_row))
        index = builder.add(self._start(line), builder.mul(place, INDEX(WIDTH)))
        return element(builder, self._w, FLOAT, builder.add(ahead, index))

    def _products(self, vectors: range, column: Value, step: Value, sums: Sequence[Value]) -> list[Value]:
        """Sums of a tile, with one more pair of terms."""
        builder = self._builder
        pair = builder.add(builder.udiv(column, INDEX(2)), step)
        start = builder.mul(pair, INDEX(self._backward.padded))
        places = [element(builder, self._turned, PAIR, self._plus(start, vector * WIDTH)) for vector in vectors]
        gradients = [builder.load(place, typ=PAIRS, align=64) for place in places]
        numbers = [self._plus(step, line * self._steps) for line in range(GRAIN)]
        weights = [spread_pair(builder, element(builder, self._weights.place, PAIR, number)) for number in numbers]
        factors = product(weights, gradients)
        return [add_products(builder, total, *each) for total, each in zip(sums, factors, strict=True)]

    def _finish(self, row: Value, column: Value) -> None:
        """Write what some rows of W give for a row of dx, which is a column of dx'."""
        builder, backward, some = self._builder, self._backward, Lanes("float32", GRAIN)
        values = ir.Constant(some.type, ir.Undefined)
        for line in range(GRAIN):
            place = element(builder, self._sums.place, FLOAT, self._plus(column, line * backward.padded))
            values = builder.insert_element(values, builder.load(place, typ=FLOAT, align=4), ir.IntType(32)(line))
        index = builder.add(builder.mul(column, INDEX(backward.inner)), row)
        store(builder, some, backward.dtype, values, element(builder, self._dx, STORED[backward.dtype], index))

    def _start(self, row: Value) -> Value:
        """Index in W of where a row begins, or of how far rows are apart."""
        return self._builder.mul(row, INDEX(self._backward.columns))

    def _plus(self, index: Value, offset: int) -> Value:
        return self._builder.add(index, INDEX(offset)) if offset else index
