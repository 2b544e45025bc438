"""Kernels that process matrices row by row on the calling thread.

The function ``rows(arrays, rows, columns, 0)`` of a module returns 0, or a status if it refuses a row.
``arrays`` is the address of the addresses of the inputs and outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from runner.kernels.contract import NativeCall, Operand
from runner.kernels.cpu.machine_code.compiler import MachineCode
from runner.kernels.cpu.machine_code.instructions import INDEX, STORED, Lanes, Value, fold, load, repeat, whole_part

STATUS = ir.IntType(32)

LANES = 8
"""Numbers computed together on every CPU, so that the order of additions does not depend on the CPU."""

_POINTER = ir.PointerType()
_ROWS = ir.FunctionType(STATUS, [_POINTER, INDEX, INDEX, INDEX])


@dataclass(frozen=True)
class Row:
    """The writer of the instructions for one row. number: of the row. columns: of the matrices."""

    builder: ir.IRBuilder
    bases: Sequence[Value]
    number: Value
    columns: Value

    def element(self, array: int, kind: ir.Type, column: Value) -> Value:
        """Address of an element of a matrix."""
        start = self.builder.mul(self.number, self.columns)
        return self.of_vector(array, kind, self.builder.add(start, column))

    def of_vector(self, array: int, kind: ir.Type, position: Value) -> Value:
        """Address of an element of a vector, such as the element at the number of the row."""
        return self.builder.gep(self.bases[array], [position], source_etype=kind)

    def load(self, array: int, lanes: Lanes, column: Value) -> Value:
        """Adjacent elements of a matrix."""
        return load(self.builder, lanes, lanes.dtype, self.element(array, STORED[lanes.dtype], column))

    def for_columns(self, dtype: str, body: Callable[[Lanes, Value], None]) -> None:
        """Append ``body(lanes, column)`` for all columns: vectors first, then one by one."""
        whole = whole_part(self.builder, self.columns, LANES)
        for lanes, begin, stop in ((Lanes(dtype, LANES), INDEX(0), whole), (Lanes(dtype, 1), whole, self.columns)):
            repeat(self.builder, begin, stop, lanes.count, _with(lanes, body))

    def reduced(
        self,
        dtype: str,
        neutral: float,
        value: Callable[[Lanes, Value], Value],
        combine: Callable[[Value, Value], Value],
    ) -> Value:
        """Append the reduction of ``value(lanes, column)``, numbers of ``dtype``, over all columns.

        Order: each lane over the whole vectors, then the lanes from first to last, then the remaining columns from
        first to last.
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
        """Append a return of the status if the condition holds."""
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
    code: MachineCode,
    operands: Sequence[Operand],
    shape: tuple[int, int],
    explain: Callable[[int], str] | None = None,
) -> NativeCall:
    """The call of a module's ``rows`` on operands. shape: (rows, columns)."""
    addresses = np.array([operand.address for operand in operands], np.intp)
    arguments = (int(addresses.ctypes.data), *shape, 0)
    return NativeCall(code.address("rows"), arguments, (code, addresses, operands), explain)


def _with(lanes: Lanes, body: Callable[[Lanes, Value], None]) -> Callable[[Value], None]:
    return lambda column: body(lanes, column)
