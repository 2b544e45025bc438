"""Sums over the first axis, such as bias gradients, added row by row as in NumPy."""

import math
from collections.abc import Callable
from functools import cache

from llvmlite import ir

from runner.kernels.contract import NativeCall, Operand
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.arithmetic import Lanes, Value
from runner.kernels.cpu.machine_code.compiler import MachineCode, host
from runner.kernels.cpu.machine_code.counting import INDEX, fold
from runner.kernels.cpu.machine_code.elements import ITEMSIZE, STORED, load, store
from runner.kernels.cpu.machine_code.loops import SLICE, element, sweep


def column_sums(x: Operand, result: Operand) -> NativeCall:
    """Return the call that sums x (m, ...) over its first axis; x and the result are plain float32.

    The result equals NumPy's sum bit for bit: it starts at +0 and adds rows if a row has more than one number.
    """
    rows, columns = x.spec.shape[0], math.prod(x.spec.shape[1:])
    code = _compiled(x.spec.dtype, rows, columns)
    return threads.over(code, (x, result), columns, threads.LINE_BYTES // ITEMSIZE[x.spec.dtype])


@cache
def _compiled(dtype: str, rows: int, columns: int) -> MachineCode:
    return MachineCode(write_module(dtype, rows, columns, host().vector_bytes))


def write_module(dtype: str, rows: int, columns: int, vector_bytes: int) -> str:
    """Return the LLVM module whose function ``slice`` computes a range of columns."""
    module = ir.Module("column_sums")
    function = ir.Function(module, SLICE, "slice")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    arrays, begin, end = function.args
    x, result = (builder.load(element(builder, arrays, INDEX, INDEX(k)), typ=ir.PointerType()) for k in range(2))

    def body(lanes: Lanes) -> Callable[[Value], None]:
        def number(row: Value, column: Value) -> Value:
            index = builder.add(builder.mul(row, INDEX(columns)), column)
            return load(builder, lanes, dtype, element(builder, x, STORED[dtype], index))

        def add_up(column: Value) -> None:
            zero = lanes.constant(0.0)
            (total,) = fold(
                builder, INDEX(0), INDEX(rows), 1, [zero], lambda row, sums: [builder.fadd(*sums, number(row, column))]
            )
            store(builder, lanes, dtype, total, element(builder, result, STORED[dtype], column))

        return add_up

    sweep(builder, dtype, vector_bytes, begin, end, body)
    builder.ret_void()
    return str(module)
