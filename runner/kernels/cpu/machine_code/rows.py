"""The common part of kernels that process matrices row by row on the calling thread.

The compiled function ``rows(arrays, rows, columns, 0)`` processes all rows and returns 0, or stops at an invalid row
and returns a status that is not 0. ``arrays`` points to the addresses of the inputs, then of the outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from llvmlite import ir

from runner.kernels.contract import NativeCall
from runner.kernels.cpu.machine_code.compiler import MachineCode
from runner.kernels.cpu.machine_code.instructions import INDEX, Lanes, Value, fold, repeat, whole_part
from runner.kernels.memory import Bytes, address_of

DTYPE = "float32"
STATUS = ir.IntType(32)

LANES = 8
"""The length of vectors. It is the same on every CPU, so that the order of additions does not depend on the CPU."""

ONE = Lanes(DTYPE, 1)
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
        for lanes, begin, stop in ((Lanes(DTYPE, LANES), INDEX(0), whole), (ONE, whole, self.columns)):
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
