"""The common part of kernels that process matrices row by row on the calling thread, and kernels of ``reduce_sum``.

The compiled function ``rows(arrays, rows, columns, 0)`` processes all rows and returns 0, or stops at an invalid row
and returns a status that is not 0. ``arrays`` points to the addresses of the inputs, then of the outputs. Sums are over
the first axis or, in arrays so small that a NumPy call would cost more than the additions, over trailing axes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from llvmlite import ir

from runner.kernels.contract import Arrangement, Attributes, Buffers, Kernel, NativeCall, Offers, Spec, Specs
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.compiler import MachineCode, host
from runner.kernels.cpu.machine_code.elementwise import LIBRARY, PRIORITY
from runner.kernels.cpu.machine_code.instructions import INDEX, ITEMSIZE, Lanes, Value, fold, repeat, whole_part
from runner.kernels.cpu.machine_code.loops import slice_module, sweep
from runner.kernels.functions import arrange_plain
from runner.kernels.memory import Bytes, address_of
from runner.kernels.registry import Registry

DTYPE = "float32"
STATUS = ir.IntType(32)

LANES = 8
"""The length of vectors. It is the same on every CPU, so that the order of additions does not depend on the CPU."""

_ONE = Lanes(DTYPE, 1)
_POINTER = ir.PointerType()
_ROWS = ir.FunctionType(STATUS, [_POINTER, INDEX, INDEX, INDEX])


@dataclass(frozen=True)
class Row:
    """A writer of the instructions for row ``number``. bases: addresses of the arrays. columns: number of columns."""

    builder: ir.IRBuilder
    bases: Sequence[Value]
    number: Value
    columns: Value

    def load(self, array: int, lanes: Lanes, column: Value) -> Value:
        """Append a load of adjacent elements of this row in a matrix. array: index of the matrix in ``bases``."""
        return lanes.load(self.builder, lanes.dtype, self.bases[array], self._index(column))

    def store(self, array: int, lanes: Lanes, column: Value, value: Value) -> None:
        """Append a store of adjacent elements of this row in a matrix. array: index of the matrix in ``bases``."""
        lanes.store(self.builder, lanes.dtype, value, self.bases[array], self._index(column))

    def _index(self, column: Value) -> Value:
        return self.builder.add(self.builder.mul(self.number, self.columns), column)

    def for_columns(self, body: Callable[[Lanes, Value], None]) -> None:
        """Append ``body(lanes, column)`` for all columns: whole vectors first, then single columns."""
        whole = whole_part(self.builder, self.columns, LANES)
        for lanes, begin, stop in ((Lanes(DTYPE, LANES), INDEX(0), whole), (_ONE, whole, self.columns)):
            repeat(self.builder, begin, stop, lanes.count, partial(body, lanes))

    def reduced(
        self,
        dtype: str,
        neutral: float,
        value: Callable[[Lanes, Value], Value],
        combine: Callable[[Value, Value], Value],
    ) -> Value:
        """Append the reduction of ``value(lanes, column)``, of dtype ``dtype``, over all columns; return the result.

        The whole vectors are combined lane by lane, then the lanes in order, then the remaining columns in order.
        """
        builder, many, one = self.builder, Lanes(dtype, LANES), Lanes(dtype, 1)
        whole = whole_part(builder, self.columns, LANES)

        def step(lanes: Lanes) -> Callable[[Value, list[Value]], Sequence[Value]]:
            return lambda column, so_far: [combine(so_far[0], value(lanes, column))]

        (vector,) = fold(builder, INDEX(0), whole, LANES, [many.constant(neutral)], step(many))
        total = builder.extract_element(vector, ir.IntType(32)(0))
        for lane in range(1, LANES):
            total = combine(total, builder.extract_element(vector, ir.IntType(32)(lane)))
        return fold(builder, whole, self.columns, 1, [total], step(one))[0]

    def refuse(self, wrong: Value, status: int) -> None:
        """Append instructions that return ``status`` from the compiled function if ``wrong`` is true."""
        refused, fine = self.builder.append_basic_block("refused"), self.builder.append_basic_block("fine")
        self.builder.cbranch(wrong, refused, fine)
        self.builder.position_at_end(refused)
        self.builder.ret(STATUS(status))
        self.builder.position_at_end(fine)


def write_module(arrays: int, body: Callable[[Row], None]) -> str:
    """Return the LLVM module with the function ``rows``, which runs the instructions of ``body`` for every row."""
    function = ir.Function(ir.Module("rows"), _ROWS, "rows")
    addresses, rows, columns, _ = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    places = [builder.gep(addresses, [INDEX(k)], source_etype=INDEX) for k in range(arrays)]
    bases = [builder.load(place, typ=_POINTER) for place in places]
    repeat(builder, INDEX(0), rows, 1, lambda number: body(Row(builder, bases, number, columns)))
    builder.ret(STATUS(0))
    return str(function.module)


def bound(
    code: MachineCode, arrays: Sequence[Bytes], shape: tuple[int, int], explain: Callable[[int], str] | None = None
) -> NativeCall:
    """Return the call of the function ``rows``. shape: (rows, columns). explain: (status) -> error message."""
    addresses = np.array([address_of(array) for array in arrays], np.intp)
    arguments = (int(addresses.ctypes.data), *shape, 0)
    return NativeCall(code.address("rows"), arguments, (code, addresses, arrays), explain)


LARGEST = 1 << 16
"""The largest array, in elements, whose trailing axes this kernel sums; NumPy adds larger arrays pairwise."""

MOST_ROWS = 256
"""The largest number of rows for which a loop per column is faster than NumPy, which adds whole rows."""

_WIDE = "float64"


def register(registry: Registry) -> None:
    """Add the kernel of op ``reduce_sum``."""
    registry.add(Kernel("reduce_sum", "cpu", LIBRARY, PRIORITY, frozenset({DTYPE}), _arrange, _bind))


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    (x,), axes = inputs, tuple(attributes["axes"])
    rank = len(x.shape)
    few_trailing = axes == tuple(range(rank - len(axes), rank)) and math.prod(x.shape) <= LARGEST
    if x.dtype == DTYPE and (few_trailing or _is_first(attributes, x)):
        return arrange_plain(attributes, inputs, outputs, offered)
    return None


def _is_first(attributes: Attributes, x: Spec) -> bool:
    """Return whether the sum is over the first axis, of at most ``MOST_ROWS`` rows with two or more numbers each."""
    rows, columns = x.shape[0] if x.shape else 0, math.prod(x.shape[1:])
    return tuple(attributes["axes"]) == (0,) and columns > 1 and rows <= MOST_ROWS


def _bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> NativeCall:
    operands = (*buffers.inputs, *buffers.outputs)
    x = operands[0].spec
    if _is_first(attributes, x):
        rows, columns = x.shape[0], math.prod(x.shape[1:])
        grain = threads.LINE_BYTES // ITEMSIZE[DTYPE]
        return threads.over(_compiled_columns(rows, columns), operands, columns, grain)
    kept = len(x.shape) - len(attributes["axes"])
    shape = math.prod(x.shape[:kept]), math.prod(x.shape[kept:])
    return bound(_compiled(), [operand.data for operand in operands], shape)


@cache
def _compiled() -> MachineCode:
    """Compile the sum of each row, added in float64 in the order of ``Row.reduced`` and rounded once."""

    def row_sum(row: Row) -> None:
        def value(lanes: Lanes, column: Value) -> Value:
            return row.builder.fpext(row.load(0, Lanes(DTYPE, lanes.count), column), lanes.type)

        total = row.reduced(_WIDE, 0.0, value, row.builder.fadd)
        _ONE.store(row.builder, DTYPE, row.builder.fptrunc(total, _ONE.type), row.bases[1], row.number)

    return MachineCode(write_module(2, row_sum))


@cache
def _compiled_columns(rows: int, columns: int) -> MachineCode:
    """Compile sums over the first axis. The rows are added to +0 one after another.

    If rows have two or more numbers, NumPy's sum is equal bit for bit.
    """
    vector_bytes = host().vector_bytes

    def write(builder: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        x, result = bases

        def body(lanes: Lanes) -> Callable[[Value], None]:
            def add_up(column: Value) -> None:
                def add(row: Value, sums: list[Value]) -> Sequence[Value]:
                    index = builder.add(builder.mul(row, INDEX(columns)), column)
                    return [builder.fadd(*sums, lanes.load(builder, DTYPE, x, index))]

                (total,) = fold(builder, INDEX(0), INDEX(rows), 1, [lanes.constant(0.0)], add)
                lanes.store(builder, DTYPE, total, result, column)

            return add_up

        sweep(builder, DTYPE, vector_bytes, begin, end, body)

    return MachineCode(slice_module("column_sums", 2, write))
