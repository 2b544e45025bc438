"""y = x W + bias, then perhaps ReLU: x bfloat16, W float32 and cast in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from llvmlite import ir

from runner.kernels.cpu.machine_code.arithmetic import EMIT, Value
from runner.kernels.cpu.machine_code.counting import INDEX, fold, repeat
from runner.kernels.cpu.machine_code.elements import STORED, fetch_for_reading, load, store
from runner.kernels.cpu.machine_code.loops import SLICE, element
from runner.kernels.cpu.machine_code.pairs import LANES, PAIR, PAIRS, Near, add_products, groups, spread_pair, stacked

WIDTH = LANES.count
HALF, FLOAT = STORED["bfloat16"], STORED["float32"]

DEPTH = 32
"""Rows of a block of W. More, whose lines are often a power of two apart, would drive each other out of a cache."""

STEPS = DEPTH // 2
"""Pairs of terms to which a block of W contributes."""

PANEL = 32
"""Vectors of a row of a block."""

GRAIN = PANEL * WIDTH
"""Columns that one thread does at least."""

TILE = (8, 2)
"""Rows of x and vectors of W whose sums are in registers together: 16 of 32, which keeps both multipliers busy."""


@dataclass(frozen=True)
class Forward:
    """x (rows, inner), W (inner, columns), both extents multiples of 32; bias (columns,) where there is one, bfloat16.

    dtype: of y (rows, columns), bfloat16 or float32.
    """

    rows: int
    inner: int
    columns: int
    bias: bool
    relu: bool
    dtype: str


def write_module(forward: Forward) -> str:
    """The module in LLVM's language; its function ``slice`` does a range of columns, of a multiple of 32."""
    module = ir.Module("matmul_cast_forward")
    _Writer(forward, ir.Function(module, SLICE, "slice")).write()
    return str(module)


class _Writer:
    """Appends the instructions of ``slice(arrays, begin, end)``; arrays are x, W, then bias where there is one, and y.

    weights: a block of W as pairs, vector by vector. rows: the part of x that meets it, row by row. sums: of a panel
    of columns, vector by vector, in each of which row by row.
    """

    def __init__(self, forward: Forward, function: ir.Function) -> None:
        self._forward = forward
        self._builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        arrays, self._begin, self._end = function.args
        count = 3 + forward.bias
        bases = [builder.load(element(builder, arrays, INDEX, INDEX(k)), typ=ir.PointerType()) for k in range(count)]
        self._x, self._w, *self._bias, self._y = bases
        self._weights = Near(builder, PAIRS, PANEL * STEPS)
        self._rows = Near(builder, PAIRS, forward.rows)
        self._sums = Near(builder, LANES.type, PANEL * forward.rows)

    def write(self) -> None:
        """Panel by panel."""
        repeat(self._builder, self._begin, self._end, GRAIN, self._panel)
        self._builder.ret_void()

    def _panel(self, column: Value) -> None:
        """The columns of a panel: block by block of W, then what follows the product."""
        builder = self._builder
        left = builder.sdiv(builder.sub(self._end, column), INDEX(WIDTH))
        vectors = builder.select(builder.icmp_signed("<", left, INDEX(PANEL)), left, INDEX(PANEL))
        self._sums.clear()

        def block(row: Value) -> None:
            repeat(builder, INDEX(0), INDEX(STEPS), 1, lambda step: self._round_rows(row, column, vectors, step))
            repeat(builder, INDEX(0), INDEX(self._forward.rows), 1, lambda one: self._bring_row(row, one))
            repeat(builder, INDEX(0), vectors, TILE[1], lambda vector: self._tiles(row, column, vector))

        repeat(builder, INDEX(0), INDEX(self._forward.inner), DEPTH, block)
        repeat(builder, INDEX(0), vectors, 1, lambda vector: self._finish(column, vector))

    def _round_rows(self, row: Value, column: Value, vectors: Value, step: Value) -> None:
        """Two rows of a block of W."""
        builder = self._builder
        upper = builder.add(row, builder.mul(step, INDEX(2)))

        def one(vector: Value) -> None:
            rounded = stacked(builder, *(self._weight(upper, line, column, vector) for line in (0, 1)))
            self._weights.store(rounded, builder.add(builder.mul(vector, INDEX(STEPS)), step))

        repeat(builder, INDEX(0), vectors, 1, one)

    def _bring_row(self, row: Value, number: Value) -> None:
        """What a row of x has for a block: read from where it lies, rows would drive each other out of a cache."""
        builder = self._builder
        start = builder.add(builder.mul(number, INDEX(self._forward.inner)), row)
        self._rows.store(builder.load(element(builder, self._x, HALF, start), typ=PAIRS, align=2), number)

    def _tiles(self, row: Value, column: Value, vector: Value) -> None:
        """Add what a block contributes to some vectors of sums, for some rows after the other.

        Meanwhile each asks for its part of those of the next block; what lies beyond the last does no harm.
        """
        builder, height, width = self._builder, *TILE
        blocks = groups(self._forward.rows, height)
        at_once = -(-2 * width // len(blocks))
        first = builder.mul(builder.udiv(vector, INDEX(width)), INDEX(len(blocks)))
        for number, rows in enumerate(blocks):
            places = [self._place(vector, across, one) for one, across in product(rows, range(width))]
            begun = builder.mul(self._plus(first, number), INDEX(STEPS))

            def term(step: Value, sums: Sequence[Value], rows: range = rows, begun: Value = begun) -> Sequence[Value]:
                asked = builder.mul(builder.add(begun, step), INDEX(at_once))
                for one in range(at_once):
                    fetch_for_reading(builder, self._line_ahead(row, column, self._plus(asked, one)))
                return self._products(rows, vector, step, sums)

            sums = fold(builder, INDEX(0), INDEX(STEPS), 1, [self._sums.load(place) for place in places], term)
            for place, total in zip(places, sums, strict=True):
                self._sums.store(total, place)

    def _line_ahead(self, row: Value, column: Value, number: Value) -> Value:
        """Place of a line of the next block. Lines are numbered along its rows, as memory answers fastest."""
        builder = self._builder
        line, vector = builder.udiv(number, INDEX(PANEL)), builder.urem(number, INDEX(PANEL))
        return self._weight(builder.add(self._plus(row, DEPTH), line), 0, column, vector)

    def _products(self, rows: range, vector: Value, step: Value, sums: Sequence[Value]) -> list[Value]:
        """Sums of a tile, with one more pair of terms."""
        builder, width = self._builder, TILE[1]
        starts = [builder.mul(self._plus(vector, across), INDEX(STEPS)) for across in range(width)]
        weights = [self._weights.load(builder.add(start, step)) for start in starts]
        places = [builder.add(INDEX(row * STEPS), step) for row in rows]
        pairs = [spread_pair(builder, element(builder, self._rows.place, PAIR, place)) for place in places]
        factors = product(pairs, weights)
        return [add_products(builder, total, *each) for total, each in zip(sums, factors, strict=True)]

    def _finish(self, column: Value, vector: Value) -> None:
        """Add the bias, apply ReLU and write a vector of every row."""
        builder, forward = self._builder, self._forward
        first = builder.add(column, builder.mul(vector, INDEX(WIDTH)))
        biases = [load(builder, LANES, "bfloat16", element(builder, base, HALF, first)) for base in self._bias]

        def one(row: Value) -> None:
            total = self._sums.load(builder.add(builder.mul(vector, INDEX(forward.rows)), row))
            for bias in biases:
                total = builder.fadd(total, bias)
            if forward.relu:
                total = EMIT["relu"](builder, LANES, total)
            index = builder.add(builder.mul(row, INDEX(forward.columns)), first)
            store(builder, LANES, forward.dtype, total, element(builder, self._y, STORED[forward.dtype], index))

        repeat(builder, INDEX(0), INDEX(forward.rows), 1, one)

    def _weight(self, row: Value, line: int, column: Value, vector: Value) -> Value:
        """Place of a vector of a panel, in the row that is ``line`` below ``row``."""
        builder = self._builder
        start = builder.add(builder.mul(self._plus(row, line), INDEX(self._forward.columns)), column)
        return element(builder, self._w, FLOAT, builder.add(start, builder.mul(vector, INDEX(WIDTH))))

    def _place(self, vector: Value, across: int, row: int) -> Value:
        """Number of the sums of a row in the vector that is ``across`` beside ``vector``."""
        start = self._builder.mul(self._plus(vector, across), INDEX(self._forward.rows))
        return self._plus(start, row)

    def _plus(self, index: Value, offset: int) -> Value:
        return self._builder.add(index, INDEX(offset)) if offset else index
