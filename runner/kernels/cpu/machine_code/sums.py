"""Sums over the first axis, and sums of few numbers over trailing axes, for which a call of NumPy costs more."""

import math
from collections.abc import Callable
from functools import cache

from llvmlite import ir

from runner.kernels.contract import (
    Arrangement,
    Attributes,
    Bound,
    Buffers,
    Kernel,
    NativeCall,
    Offers,
    Operand,
    Spec,
    Specs,
)
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.compiler import MachineCode, host
from runner.kernels.cpu.machine_code.elementwise import LIBRARY, PRIORITY
from runner.kernels.cpu.machine_code.instructions import INDEX, ITEMSIZE, STORED, Lanes, Value, fold, load, store
from runner.kernels.cpu.machine_code.loops import SLICE, element, sweep
from runner.kernels.cpu.machine_code.rows import Row, bound, write_module
from runner.kernels.functions import arrange_plain
from runner.kernels.registry import Registry

DTYPE = "float32"

LARGEST = 1 << 16
"""The number of elements up to which sequential sums on one thread are used; NumPy adds longer sums pairwise."""

MOST_ROWS = 256
"""The number of rows up to which adding column by column is faster than NumPy, which adds along the rows."""

_WIDE = "float64"


def register(registry: Registry) -> None:
    """Add the kernel of op ``reduce_sum``."""
    registry.add(Kernel("reduce_sum", "cpu", LIBRARY, PRIORITY, frozenset({DTYPE}), _arrange, _bind))


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    (x,) = inputs
    few_trailing = _are_trailing(attributes, x) and math.prod(x.shape) <= LARGEST
    if x.dtype == DTYPE and (few_trailing or _is_first(attributes, x)):
        return arrange_plain(attributes, inputs, outputs, offered)
    return None


def _are_trailing(attributes: Attributes, x: Spec) -> bool:
    rank = len(x.shape)
    return tuple(attributes["axes"]) == tuple(range(rank - len(attributes["axes"]), rank))


def _is_first(attributes: Attributes, x: Spec) -> bool:
    """Whether the sum is over the first axis and has few rows of more than one number."""
    rows, columns = x.shape[0] if x.shape else 0, math.prod(x.shape[1:])
    return tuple(attributes["axes"]) == (0,) and columns > 1 and rows <= MOST_ROWS


def _bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    (x,) = buffers.inputs
    if _is_first(attributes, x.spec):
        return column_sums(x, *buffers.outputs)
    kept = len(x.spec.shape) - len(attributes["axes"])
    shape = math.prod(x.spec.shape[:kept]), math.prod(x.spec.shape[kept:])
    return bound(_compiled(), (x, *buffers.outputs), shape)


@cache
def _compiled() -> MachineCode:
    """Sums of rows in float64, rounded once, in the order of ``Row.reduced``."""

    def row_sum(row: Row) -> None:
        def value(lanes: Lanes, column: Value) -> Value:
            return _widened(row.builder, lanes, row.load(0, Lanes(DTYPE, lanes.count), column))

        total = row.reduced(_WIDE, 0.0, value, row.builder.fadd)
        one = Lanes(DTYPE, 1)
        place = row.of_vector(1, STORED[DTYPE], row.number)
        store(row.builder, one, DTYPE, row.builder.fptrunc(total, one.type), place)

    return MachineCode(write_module(2, row_sum))


def _widened(builder: ir.IRBuilder, lanes: Lanes, value: Value) -> Value:
    return builder.fpext(value, lanes.type)


def column_sums(x: Operand, result: Operand) -> NativeCall:
    """Return the call that sums x (m, ...) over its first axis; x and the result are plain float32.

    The result equals NumPy's sum bit for bit: it starts at +0 and adds rows if a row has more than one number.
    """
    rows, columns = x.spec.shape[0], math.prod(x.spec.shape[1:])
    code = _compiled_columns(x.spec.dtype, rows, columns)
    return threads.over(code, (x, result), columns, threads.LINE_BYTES // ITEMSIZE[x.spec.dtype])


@cache
def _compiled_columns(dtype: str, rows: int, columns: int) -> MachineCode:
    return MachineCode(write_columns(dtype, rows, columns, host().vector_bytes))


def write_columns(dtype: str, rows: int, columns: int, vector_bytes: int) -> str:
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
