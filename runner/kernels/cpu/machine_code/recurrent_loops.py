"""Loops of long short-term memory over blocks of units, as LLVM instructions; see ``recurrent``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from llvmlite import ir

from runner.kernels.cpu.machine_code.activations import sigmoid, tanh
from runner.kernels.cpu.machine_code.instructions import INDEX, STORED, Lanes, Value, fold, repeat
from runner.kernels.cpu.machine_code.loops import slice_module

DTYPE = "float32"
GATES = 4
SUMS = {64: 24, 32: 12, 16: 24}
"""Vector bytes -> the number of sums in registers; the other registers hold factors. CPUs with 32-byte vectors have 16
registers, all others have 32."""

GATES_AT_ONCE = {64: 4, 32: 2, 16: 4}
"""Vector bytes -> the number of gates whose sums are computed together, so that the factors fit the registers."""

PART_BYTES = 16 * 1024
"""Bytes of a part of a panel: half of a first-level cache of 32 KiB. The terms of one part are added to the sums of all
rows before the next part is read."""

MOST_ROWS = 60
"""The largest number of rows in a group, whose sums are kept in the cache."""


def vectors_of(units: int, lanes: int) -> int:
    """Return the number of vectors of units in a block of the backward loop. lanes: length of a vector."""
    return 2 if units % (2 * lanes) == 0 else 1


def write_module(kind: str, rows: int, units: int, vector_bytes: int) -> str:
    """Return the LLVM module whose function ``slice`` computes a range of blocks of units. kind: key of ``loops``."""
    loops: dict[str, tuple[int, Callable[[_Writer, Value], None]]] = {
        "panels": (2, _Writer.pack),
        "transposed panels": (2, _Writer.pack_transposed),
        "forward": (7, _Writer.forward),
        "backward": (9, partial(_Writer.backward, multiplied=True)),
        "last": (9, partial(_Writer.backward, multiplied=False)),
        "product": (3, _Writer.product),
    }
    arrays, body = loops[kind]

    def write(builder: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        repeat(builder, begin, end, 1, partial(body, _Writer(builder, bases, rows, units, vector_bytes)))

    return slice_module("lstm", arrays, write)


@dataclass(frozen=True)
class _Rows:
    """A group of adjacent rows. first: index of the first row. line: number of vectors of sums per row."""

    first: Value
    count: int
    line: int


@dataclass
class _Writer:
    """A writer of the instructions for one block of units; see :func:`write_module`."""

    builder: ir.IRBuilder
    bases: list[Value]
    rows: int
    units: int
    vector_bytes: int

    def __post_init__(self) -> None:
        self.lanes = Lanes.filling(DTYPE, self.vector_bytes)
        self.width = self.lanes.count
        self.vectors = vectors_of(self.units, self.width)
        # The sums are on the stack, where rows are adjacent. The rows of a tensor can be so far apart that they compete
        # for a few sets of the cache.
        numbers = ir.ArrayType(STORED[DTYPE], max(1, min(self.rows, MOST_ROWS)) * GATES * self.width)
        sums = self.builder.alloca(numbers)
        sums.align = self.vector_bytes
        self.sums = len(self.bases)
        # llvmlite gives this address a typed pointer; the addresses of the arrays are opaque pointers.
        self.bases.append(self.builder.inttoptr(self.builder.ptrtoint(sums, INDEX), ir.PointerType()))

    def pack(self, block: Value) -> None:
        """Copy a block's columns of the weights (H, 4 H) into panels of ``GATES_AT_ONCE`` gates, row after row."""
        first, at_once = self._times(block, self.width), GATES_AT_ONCE[self.vector_bytes]

        def copy_row(row: Value) -> None:
            for gate in range(GATES):
                source = self._plus(self._times(row, GATES * self.units), first, gate * self.units)
                line = self._plus(self._panel_of(block, gate - gate % at_once), self._times(row, at_once * self.width))
                self._store(1, self._plus(line, gate % at_once * self.width), self._load(0, source))

        repeat(self.builder, INDEX(0), INDEX(self.units), 1, copy_row)

    def _panel_of(self, block: Value, gate: int) -> Value:
        """Return the index at which a block's panel with the first gate ``gate`` begins."""
        return self._plus(self._times(block, GATES * self.units * self.width), gate * self.units * self.width)

    def pack_transposed(self, block: Value) -> None:
        """Transpose a block's rows of the weights (H, 4 H) into a panel with 4 H lines of the block's units."""
        columns, block_units = GATES * self.units, self.vectors * self.width
        one = Lanes(DTYPE, 1)

        def copy_row(unit: Value) -> None:
            source = self._times(self._plus(self._times(block, block_units), unit), columns)
            target = self._plus(self._times(block, columns * block_units), unit)

            def copy(column: Value) -> None:
                value = self._load(0, self._plus(source, column), one)
                self._store(1, self._plus(target, self._times(column, block_units)), value, one)

            repeat(self.builder, INDEX(0), INDEX(columns), 1, copy)

        repeat(self.builder, INDEX(0), INDEX(block_units), 1, copy_row)

    def forward(self, block: Value) -> None:
        """Append a forward step. Arrays: h before the step, panels, inputs, c before the step, h, c, gates."""
        column = self._times(block, self.width)
        at_once = GATES_AT_ONCE[self.vector_bytes]

        def write(rows: _Rows) -> None:
            def begin(row: Value) -> None:
                place = self._plus(self._times(self._plus(rows.first, row), GATES * self.units), column)
                for gate in range(GATES):
                    value = self._load(2, self._plus(place, gate * self.units))
                    self._store(self.sums, self._sum(rows, row, gate), value)

            self._each(rows, begin)
            for gate in range(0, GATES, at_once):
                panel = self._panel_of(block, gate)
                self._add_products(rows, range(gate, gate + at_once), (0, self.units), panel)
            self._each(rows, lambda row: self._forward_vector(rows, row, column))

        self._each_group(GATES, write)

    def _forward_vector(self, rows: _Rows, row: Value, column: Value) -> None:
        units, lanes, builder = self.units, self.lanes, self.builder
        narrow = self._plus(self._times(self._plus(rows.first, row), units), column)
        wide = self._plus(self._times(self._plus(rows.first, row), GATES * units), column)
        a_i, a_f, a_g, a_o = (self._load(self.sums, self._sum(rows, row, gate)) for gate in range(GATES))
        i, f, o = (sigmoid(builder, lanes, each) for each in (a_i, a_f, a_o))
        g = tanh(builder, lanes, a_g)
        c = builder.fadd(builder.fmul(f, self._load(3, narrow)), builder.fmul(i, g))
        self._store(5, narrow, c)
        self._store(4, narrow, builder.fmul(o, tanh(builder, lanes, c)))
        for gate, value in enumerate((i, f, g, o)):
            self._store(6, self._plus(wide, gate * units), value)

    def backward(self, block: Value, *, multiplied: bool) -> None:
        """Append a backward step. multiplied: False in the last step, which has no gradient from a next step.

        Arrays: dinputs of the next step, panels, dh, dc, c, gates, dinputs, c before the step, gradient of c.
        """

        def write(rows: _Rows) -> None:
            if multiplied:
                self._product_of(rows, block)

            def compute(row: Value) -> None:
                for v in range(self.vectors):
                    into_h = self._load(self.sums, self._sum(rows, row, v)) if multiplied else None
                    self._backward_vector(self._plus(rows.first, row), self._unit(block, v), into_h)

            self._each(rows, compute)

        self._each_group(self.vectors, write)

    def _backward_vector(self, row: Value, unit: Value, later_h: Value | None) -> None:
        b, units, one = self.builder, self.units, self.lanes.constant(1.0)
        narrow = self._plus(self._times(row, units), unit)
        wide = self._plus(self._times(row, GATES * units), unit)
        i, f, g, o = (self._load(5, self._plus(wide, gate * units)) for gate in range(GATES))
        size = tanh(b, self.lanes, self._load(4, narrow))
        into_h = self._load(2, narrow)
        into_h = into_h if later_h is None else b.fadd(into_h, later_h)
        slope = b.fsub(one, b.fmul(size, size))
        into_c = b.fadd(self._load(3, narrow), b.fmul(b.fmul(into_h, o), slope))
        into_c = into_c if later_h is None else b.fadd(into_c, self._load(8, narrow))
        values = (
            b.fmul(b.fmul(into_c, g), b.fmul(i, b.fsub(one, i))),
            b.fmul(b.fmul(into_c, self._load(7, narrow)), b.fmul(f, b.fsub(one, f))),
            b.fmul(b.fmul(into_c, i), b.fsub(one, b.fmul(g, g))),
            b.fmul(b.fmul(into_h, size), b.fmul(o, b.fsub(one, o))),
        )
        for gate, value in enumerate(values):
            self._store(6, self._plus(wide, gate * units), value)
        self._store(8, narrow, b.fmul(into_c, f))

    def product(self, block: Value) -> None:
        """Append the gradient of the initial h. Arrays: dinputs of the first step, panels, the gradient."""

        def write(rows: _Rows) -> None:
            self._product_of(rows, block)

            def keep(row: Value) -> None:
                for v in range(self.vectors):
                    place = self._plus(self._times(self._plus(rows.first, row), self.units), self._unit(block, v))
                    self._store(2, place, self._load(self.sums, self._sum(rows, row, v)))

            self._each(rows, keep)

        self._each_group(self.vectors, write)

    def _product_of(self, rows: _Rows, block: Value) -> None:
        """Compute the sums of the product of dinputs, array 0, with a block of the transposed weights."""
        columns, vectors = GATES * self.units, range(self.vectors)

        def clear(row: Value) -> None:
            for v in vectors:
                self._store(self.sums, self._sum(rows, row, v), self.lanes.constant(0.0))

        self._each(rows, clear)
        self._add_products(rows, vectors, (0, columns), self._times(block, columns * self.vectors * self.width))

    def _add_products(self, rows: _Rows, vectors: range, factor_of: tuple[int, int], panel: Value) -> None:
        """Add the product of an array and a panel to ``vectors`` of the sums, term after term.

        factor_of: (index of the array, number of terms). Row r of the product is row r of the array times the panel,
        which has one line of ``len(vectors)`` vectors per term.
        """
        builder, terms = self.builder, factor_of[1]
        part = max(1, PART_BYTES // (len(vectors) * self.vector_bytes))

        def add_part(first: Value) -> None:
            end = self._plus(first, part)
            end = builder.select(builder.icmp_signed("<", end, INDEX(terms)), end, INDEX(terms))
            for begin, stop, size in _blocks(rows.count, SUMS[self.vector_bytes] // len(vectors)):

                def add_rows(row: Value, size: int = size) -> None:
                    places = [self._sum(rows, self._plus(row, r), v) for r in range(size) for v in vectors]
                    starts = [self._times(self._plus(rows.first, row, r), terms) for r in range(size)]

                    def add_term(term: Value, sums: list[Value]) -> list[Value]:
                        line = self._plus(panel, self._times(term, len(vectors) * self.width))
                        right = [self._load(1, self._plus(line, v * self.width)) for v in range(len(vectors))]
                        left = [self._spread(factor_of[0], self._plus(start, term)) for start in starts]
                        factors = [(one, other) for one in left for other in right]
                        return [
                            self.lanes.intrinsic(builder, "fma", *both, total)
                            for both, total in zip(factors, sums, strict=True)
                        ]

                    before = [self._load(self.sums, place) for place in places]
                    for place, total in zip(places, fold(builder, first, end, 1, before, add_term), strict=True):
                        self._store(self.sums, place, total)

                repeat(builder, INDEX(begin), INDEX(stop), size, add_rows)

        repeat(builder, INDEX(0), INDEX(terms), part, add_part)

    def _each_group(self, line: int, body: Callable[[_Rows], None]) -> None:
        """Append loops over groups of rows with ``line`` vectors of sums each."""
        for first, stop, size in _blocks(self.rows, MOST_ROWS):

            def write(row: Value, size: int = size) -> None:
                body(_Rows(row, size, line))

            repeat(self.builder, INDEX(first), INDEX(stop), size, write)

    def _each(self, rows: _Rows, body: Callable[[Value], None]) -> None:
        """Append a loop over the rows of a group, counted from its first row."""
        repeat(self.builder, INDEX(0), INDEX(rows.count), 1, body)

    def _sum(self, rows: _Rows, row: Value, vector: int) -> Value:
        """Return the place of a vector of sums. row: counted from the first row of the group."""
        return self._plus(self._times(row, rows.line * self.width), vector * self.width)

    def _unit(self, block: Value, vector: int) -> Value:
        return self._plus(self._times(block, self.vectors * self.width), vector * self.width)

    def _spread(self, array: int, place: Value) -> Value:
        return self.lanes.spread(self.builder, self._load(array, place, Lanes(DTYPE, 1)))

    def _times(self, value: Value, factor: int) -> Value:
        return self.builder.mul(value, INDEX(factor))

    def _plus(self, value: Value, *others: Value | int) -> Value:
        for other in others:
            value = self.builder.add(value, INDEX(other) if isinstance(other, int) else other)
        return value

    def _load(self, array: int, place: Value, lanes: Lanes | None = None) -> Value:
        return (lanes or self.lanes).load(self.builder, DTYPE, self.bases[array], place)

    def _store(self, array: int, place: Value, value: Value, lanes: Lanes | None = None) -> None:
        (lanes or self.lanes).store(self.builder, DTYPE, value, self.bases[array], place)


def _blocks(rows: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Divide rows into blocks of at most ``most`` rows; yield (first row, end, rows per block) for each block size."""
    blocks = -(-rows // most)
    small, larger = divmod(rows, blocks)
    middle = larger * (small + 1)
    yield from (each for each in ((0, middle, small + 1), (middle, rows, small)) if each[0] < each[1])
