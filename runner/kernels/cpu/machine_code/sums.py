"""Sums of float32 numbers, or of their squares: over the first axis, over trailing axes, or over all axes.

The order of additions depends only on the shape and the axes. It is NumPy's order, except for sums over trailing axes
of at most ``LARGEST`` elements, which are added in float64.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from runner.kernels.contract import Arrangement, Attributes, Bound, Buffers, Kernel, NativeCall, Offers, Spec, Specs
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.compiler import MachineCode, host
from runner.kernels.cpu.machine_code.elementwise import LIBRARY, PRIORITY
from runner.kernels.cpu.machine_code.instructions import INDEX, ITEMSIZE, STORED, Lanes, Value, element, fold, repeat
from runner.kernels.cpu.machine_code.loops import slice_module, sweep
from runner.kernels.cpu.machine_code.rows import DTYPE, LANES, ONE, Row, bound, write_module
from runner.kernels.functions import arrange_plain
from runner.kernels.memory import ALIGNMENT
from runner.kernels.registry import Registry

LARGEST = 1 << 16
"""The largest array, in elements, whose trailing axes are summed row by row; NumPy adds larger arrays pairwise."""

MOST_ROWS = 256
"""The largest number of rows for which a loop per column is faster than NumPy, which adds whole rows."""

PART = 1 << 14
"""The largest part, in elements, of a sum over all axes that one thread computes."""

_WIDE = "float64"
_LEAF = 128
"""The largest number of elements that NumPy's pairwise sum does not halve."""


def register(registry: Registry) -> None:
    """Add the kernels of ops ``reduce_sum`` and ``sum_of_squares``."""
    for op, squared in (("reduce_sum", False), ("sum_of_squares", True)):
        bind = partial(_bind, squared)
        registry.add(Kernel(op, "cpu", LIBRARY, PRIORITY, frozenset({DTYPE}), partial(_arrange, squared), bind))


def _arrange(
    squared: bool, attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers
) -> Arrangement | None:
    (x,), axes = inputs, tuple(attributes["axes"])
    rank, size = len(x.shape), math.prod(x.shape)
    few_trailing = axes == tuple(range(rank - len(axes), rank)) and size <= LARGEST
    found = arrange_plain(attributes, inputs, outputs, offered)
    if x.dtype != DTYPE or found is None:
        return None
    if _is_whole(attributes, x):
        return replace(found, scratch_bytes=_parts(size)[0].size * ITEMSIZE[DTYPE])
    return found if few_trailing or (_is_first(attributes, x) and not squared) else None


def _is_first(attributes: Attributes, x: Spec) -> bool:
    """Return whether the sum is over the first axis, of at most ``MOST_ROWS`` rows with two or more numbers each."""
    rows, columns = x.shape[0] if x.shape else 0, math.prod(x.shape[1:])
    return tuple(attributes["axes"]) == (0,) and columns > 1 and rows <= MOST_ROWS


def _is_whole(attributes: Attributes, x: Spec) -> bool:
    """Return whether the sum is over all axes of more than ``LARGEST`` elements."""
    return len(attributes["axes"]) == len(x.shape) and math.prod(x.shape) > LARGEST


def _bind(squared: bool, attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    operands = (*buffers.inputs, *buffers.outputs)
    x = operands[0].spec
    if _is_whole(attributes, x):
        return _pairwise(squared, buffers)
    if _is_first(attributes, x):
        rows, columns = x.shape[0], math.prod(x.shape[1:])
        grain = ALIGNMENT // ITEMSIZE[DTYPE]
        return threads.over(_compiled_columns(rows, columns), operands, columns, grain)
    kept = len(x.shape) - len(attributes["axes"])
    shape = math.prod(x.shape[:kept]), math.prod(x.shape[kept:])
    return bound(_compiled(squared), [operand.data for operand in operands], shape)


@cache
def _compiled(squared: bool) -> MachineCode:
    """Compile the sum of each row, added in float64 in the order of ``Row.reduced`` and rounded once."""

    def row_sum(row: Row) -> None:
        def value(lanes: Lanes, column: Value) -> Value:
            loaded = row.load(0, Lanes(DTYPE, lanes.count), column)
            return row.builder.fpext(row.builder.fmul(loaded, loaded) if squared else loaded, lanes.type)

        total = row.reduced(_WIDE, 0.0, value, row.builder.fadd)
        ONE.store(row.builder, DTYPE, row.builder.fptrunc(total, ONE.type), row.bases[1], row.number)

    return MachineCode(write_module(2, row_sum))


@cache
def _compiled_columns(rows: int, columns: int) -> MachineCode:
    """Compile sums over the first axis. The rows are added to +0 one after another."""
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


def _pairwise(squared: bool, buffers: Buffers) -> list[NativeCall]:
    """Return the calls that add the parts, on all threads, and then their sums."""
    (x,), (y,) = buffers.inputs, buffers.outputs
    starts, merges = _parts(math.prod(x.spec.shape))
    count = len(starts) - 1
    sums = int(buffers.host_scratch.ctypes.data)
    keep = (x, y, buffers.host_scratch, starts, merges)
    places = [x.address, int(starts.ctypes.data), sums]
    rest = [sums, int(merges.ctypes.data), y.address]
    return [
        threads.call(_compiled_parts(squared), places, count, 1, keep, parallel=True),
        threads.call(_compiled_merge(), rest, count - 1, 1, keep, parallel=False),
    ]


@cache
def _parts(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the parts of at most ``PART`` numbers into which NumPy's pairwise sum divides ``count`` numbers.

    The first array has the start of each part, and the end of the last. The second array has pairs of parts (a, b) in
    the order in which the sum of b is added to that of a.
    """
    starts, merges = [0], []

    def divide(size: int) -> int:
        """Append the parts of the next ``size`` numbers; return the number of the first."""
        if size <= PART:
            starts.append(starts[-1] + size)
            return len(starts) - 2
        half = size // 2 // LANES * LANES
        first, second = divide(half), divide(size - half)
        merges.append((first, second))
        return first

    divide(count)
    return np.array(starts, np.int64), np.array(merges, np.int64)


@cache
def _compiled_parts(squared: bool) -> MachineCode:
    """Compile the function that adds the numbers of each part of a range: slice([x, starts, sums], begin, end)."""

    def write(builder: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        x, starts, sums = bases
        pairwise = _pairwise_function(builder.module, squared)

        def add_part(part: Value) -> None:
            start, stop = _pair(builder, starts, part)
            total = builder.call(pairwise, [element(builder, x, STORED[DTYPE], start), builder.sub(stop, start)])
            ONE.store(builder, DTYPE, total, sums, part)

        repeat(builder, begin, end, 1, add_part)

    return MachineCode(slice_module("pairwise_sums", 3, write))


def _pair(builder: ir.IRBuilder, table: Value, position: Value) -> list[Value]:
    places = [element(builder, table, INDEX, builder.add(position, INDEX(k))) for k in (0, 1)]
    return [builder.load(place, typ=INDEX) for place in places]


def _pairwise_function(module: ir.Module, squared: bool) -> ir.Function:
    """Add the function (address of x, count of at least 8) -> sum, in the order of NumPy's pairwise sum."""
    function = ir.Function(module, ir.FunctionType(STORED[DTYPE], [ir.PointerType(), INDEX]), "pairwise")
    function.linkage = "internal"
    x, count = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    with builder.if_then(builder.icmp_unsigned(">", count, INDEX(_LEAF))):
        half = builder.and_(builder.lshr(count, INDEX(1)), INDEX(-LANES))
        first = builder.call(function, [x, half])
        second = builder.call(function, [element(builder, x, STORED[DTYPE], half), builder.sub(count, half)])
        builder.ret(builder.fadd(first, second))
    whole = builder.and_(count, INDEX(-LANES))

    def load(lanes: Lanes, index: Value) -> Value:
        value = lanes.load(builder, DTYPE, x, index)
        return builder.fmul(value, value) if squared else value

    def added(lanes: Lanes, begin: Value, stop: Value, initial: Value) -> Value:
        def add(index: Value, sums: list[Value]) -> Sequence[Value]:
            return [builder.fadd(*sums, load(lanes, index))]

        return fold(builder, begin, stop, lanes.count, [initial], add)[0]

    eight = Lanes(DTYPE, LANES)
    vector = added(eight, INDEX(LANES), whole, load(eight, INDEX(0)))
    sums = [builder.extract_element(vector, ir.IntType(32)(lane)) for lane in range(LANES)]
    while len(sums) > 1:
        sums = [builder.fadd(*pair) for pair in zip(sums[::2], sums[1::2], strict=True)]
    builder.ret(added(ONE, whole, count, sums[0]))
    return function


@cache
def _compiled_merge() -> MachineCode:
    """Compile the function that adds the sums of the parts: slice([sums, merges, y], 0, number of merges)."""

    def write(builder: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        sums, merges, y = bases

        def merge(number: Value) -> None:
            a, b = _pair(builder, merges, builder.shl(number, INDEX(1)))
            total = builder.fadd(*(ONE.load(builder, DTYPE, sums, each) for each in (a, b)))
            ONE.store(builder, DTYPE, total, sums, a)

        repeat(builder, begin, end, 1, merge)
        # NumPy adds to +0, so a sum of zeros is never -0.
        ONE.store(builder, DTYPE, builder.fadd(ONE.constant(0.0), ONE.load(builder, DTYPE, sums)), y)

    return MachineCode(slice_module("merged_sums", 3, write))
