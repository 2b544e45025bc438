"""A matrix product that is read by an element-wise program and never stored in memory.

The product is x' dy (x transposed times dy), a sum over few rows: the weight gradient of a dense layer. The program
updates the weights. A block of the product is computed in registers just before the block's weights are updated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

from llvmlite import ir

from runner.kernels.contract import Arrangement, Attributes, Bound, Buffers, Kernel, Offers, Specs, all_plain
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.compiler import MachineCode, host
from runner.kernels.cpu.machine_code.elementwise import LIBRARY, PRIORITY
from runner.kernels.cpu.machine_code.instructions import INDEX, Lanes, Value, fetch_for_writing, fold, repeat
from runner.kernels.cpu.machine_code.loops import ElementLoop, emit_steps, shared_values, slice_module
from runner.kernels.elementwise import parse
from runner.kernels.registry import Registry

OP = "matmul_elementwise"
DTYPE = "float32"
_ONE = Lanes(DTYPE, 1)
MOST_TERMS = 64
"""The largest number of rows of x and dy for which the product costs less than the memory traffic that it saves."""

BLOCK_OF_VECTOR_BYTES = {64: (8, 3)}
"""Vector bytes -> (rows, vectors) of a block of the product. A block uses 24 of 32 registers; x and dy use the rest."""

SMALL_BLOCK = (4, 3)
"""(rows, vectors) of a block on all other CPUs; the block fits in 16 registers."""

GRAIN = 8
"""The minimum number of rows per thread; a multiple of the rows of a block."""


@dataclass(frozen=True)
class Update:
    """An update to compile, for x (terms, rows) and dy (terms, columns). loop: the loop of the program. place: index of
    the product among the inputs of the program."""

    loop: ElementLoop
    place: int
    terms: int
    rows: int
    columns: int


def register(registry: Registry) -> None:
    """Add the kernel of op ``matmul_elementwise`` if the CPU has a fused multiply-add instruction."""
    if not host().multiplies_and_adds:
        return
    registry.add(Kernel(OP, "cpu", LIBRARY, PRIORITY, frozenset({DTYPE}), _arrange, _bind))


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    """Arrange all tensors in C order. Return None unless the product is x' dy with 1 to ``MOST_TERMS`` terms."""
    transposed = (attributes["transpose_a"], attributes["transpose_b"]) == (True, False)
    if not transposed or not 0 < inputs[0].shape[0] <= MOST_TERMS:
        return None
    wide = [position for position, spec in enumerate(inputs) if position > 1 and spec.shape]
    in_place = tuple(product(wide, range(len(outputs))))
    return all_plain(inputs, outputs, in_place=in_place)


def _bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    x, dy, *rest = (operand.spec for operand in buffers.inputs)
    place = attributes["product"]
    wide = [bool(spec.shape) for spec in rest]
    wide.insert(place, True)
    shapes = (x.shape[0], x.shape[1], dy.shape[1])
    code = _compiled(attributes["program"], tuple(attributes["outputs"]), tuple(wide), place, *shapes)
    return threads.over(code, (*buffers.inputs, *buffers.outputs), x.shape[1], GRAIN)


@cache
def _compiled(
    program: str, outputs: tuple[int, ...], wide: tuple[bool, ...], place: int, terms: int, rows: int, columns: int
) -> MachineCode:
    loop = ElementLoop(parse(program, len(wide), outputs), DTYPE, wide)
    return MachineCode(write_module(Update(loop, place, terms, rows, columns), host().vector_bytes))


def write_module(update: Update, vector_bytes: int) -> str:
    """Return the LLVM module whose function ``slice`` computes and applies a range of rows of the product."""

    def write(builder: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        _Writer(update, builder, bases, vector_bytes).write(begin, end)

    return slice_module("product", 1 + len(update.loop.wide) + len(update.loop.program.outputs), write)


class _Writer:
    """A writer of the function ``slice``. bases: addresses of x, dy, the other operands and the outputs."""

    def __init__(self, update: Update, builder: ir.IRBuilder, bases: list[Value], vector_bytes: int) -> None:
        self._update, self._builder = update, builder
        self._lanes = Lanes.filling(DTYPE, vector_bytes).count
        self._rows, self._vectors = BLOCK_OF_VECTOR_BYTES.get(vector_bytes, SMALL_BLOCK)
        loop, place = update.loop, update.place
        x, dy, *rest = bases
        self._x, self._dy = x, dy
        # The product is an input of the program but has no memory.
        self._inputs = [*rest[:place], None, *rest[place : len(loop.wide) - 1]]
        self._stored = [number for number, wide in enumerate(loop.wide) if wide and number != place]
        self._outputs = rest[len(loop.wide) - 1 :]
        self._shared = shared_values(builder, loop, self._inputs)

    def write(self, begin: Value, end: Value) -> None:
        """Append loops over whole blocks of rows, then over single rows."""
        builder = self._builder
        for rows in (self._rows, 1):
            blocks = builder.sdiv(builder.sub(end, begin), INDEX(rows))
            stop = builder.add(begin, builder.mul(blocks, INDEX(rows)))
            repeat(builder, begin, stop, rows, partial(self._all_columns, rows))
            begin = stop

    def _all_columns(self, rows: int, row: Value) -> None:
        """Append loops over all columns of ``rows`` rows: blocks of vectors, then vectors, then numbers."""
        columns, lanes, begin = self._update.columns, self._lanes, 0
        for vectors, width in ((self._vectors, lanes), (1, lanes), (1, 1)):
            stop = begin + (columns - begin) // (vectors * width) * (vectors * width)
            block = _Block(rows, vectors, Lanes(DTYPE, width), row)
            repeat(self._builder, INDEX(begin), INDEX(stop), vectors * width, partial(self._block, block))
            begin = stop

    def _block(self, block: "_Block", column: Value) -> None:
        """Append instructions that compute a block of the product and run the program on it."""
        builder, lanes = self._builder, block.lanes
        spread = {number: lanes.spread(builder, value) for number, value in self._shared.items()}
        zeros = [lanes.constant(0.0)] * (block.rows * block.vectors)

        def add_term(term: Value, sums: Sequence[Value]) -> Sequence[Value]:
            if block.rows > 1:  # Single rows are few, so their memory is not prefetched.
                self._fetch_ahead(block, column, term)
            return self._term(block, column, term, sums)

        sums = fold(builder, INDEX(0), INDEX(self._update.terms), 1, zeros, add_term)
        for (row, vector), total in zip(block.places(), sums, strict=True):
            start = builder.mul(self._plus(block.row, row), INDEX(self._update.columns))
            index = builder.add(start, self._plus(column, vector * lanes.count))
            self._run_program(lanes, index, total, spread)

    def _fetch_ahead(self, block: "_Block", column: Value, term: Value) -> None:
        """Prefetch some of the memory that the next block of columns will update.

        Prefetches are spread over the terms of a sum, so that arithmetic continues while memory is fetched. Repeated
        prefetches and prefetches beyond the last column do no harm.
        """
        builder = self._builder
        vectors = block.rows * block.vectors
        at_once = -(-vectors // self._update.terms)
        for one in range(at_once):
            number = self._plus(builder.mul(term, INDEX(at_once)), one)
            number = builder.select(builder.icmp_unsigned("<", number, INDEX(vectors)), number, INDEX(vectors - 1))
            row = builder.add(block.row, builder.udiv(number, INDEX(block.vectors)))
            vector = self._plus(builder.urem(number, INDEX(block.vectors)), block.vectors)
            ahead = builder.add(column, builder.mul(vector, INDEX(block.lanes.count)))
            index = builder.add(builder.mul(row, INDEX(self._update.columns)), ahead)
            for position in self._stored:
                fetch_for_writing(builder, DTYPE, self._inputs[position], index)

    def _term(self, block: "_Block", column: Value, term: Value, sums: Sequence[Value]) -> list[Value]:
        """Return the sums, each with one more term: the product of an element of x and an element of dy."""
        builder, update, lanes = self._builder, self._update, block.lanes
        start = builder.add(builder.mul(term, INDEX(update.columns)), column)
        dy = [lanes.load(builder, DTYPE, self._dy, self._plus(start, v * lanes.count)) for v in range(block.vectors)]
        start = builder.add(builder.mul(term, INDEX(update.rows)), block.row)
        x = [_ONE.load(builder, DTYPE, self._x, self._plus(start, row)) for row in range(block.rows)]
        x = [lanes.spread(builder, number) for number in x]
        return [
            lanes.intrinsic(builder, "fma", x[row], dy[vector], total)
            for (row, vector), total in zip(block.places(), sums, strict=True)
        ]

    def _run_program(self, lanes: Lanes, index: Value, total: Value, spread: Mapping[int, Value]) -> None:
        """Append the program for one element per lane, from ``index`` on. total: the product at these elements."""
        builder, loop = self._builder, self._update.loop
        values = {**spread, self._update.place: total}
        for number in self._stored:
            values[number] = lanes.load(builder, DTYPE, self._inputs[number], index)
        emit_steps(builder, loop, lanes, values, loop.program.widened(loop.wide))
        for number, base in zip(loop.program.outputs, self._outputs, strict=True):
            lanes.store(builder, DTYPE, values[number], base, index)

    def _plus(self, index: Value, offset: int) -> Value:
        return self._builder.add(index, INDEX(offset)) if offset else index


@dataclass(frozen=True)
class _Block:
    """Adjacent rows and vectors of the product, from ``row`` on."""

    rows: int
    vectors: int
    lanes: Lanes
    row: Value

    def places(self) -> list[tuple[int, int]]:
        """Return (row, vector) for every vector of the block."""
        return list(product(range(self.rows), range(self.vectors)))
