"""Element-wise programs as loops of machine code.

The compiled function ``slice(arrays, begin, end)`` computes a range of elements: whole vectors first, then single
elements. ``arrays`` points to the addresses of the inputs and outputs. An output may share the memory of an input,
because all inputs of an element are read before its outputs are written.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cffi
import numpy as np
from llvmlite import ir

from runner.kernels.contract import Array
from runner.kernels.cpu.machine_code.compiler import MachineCode
from runner.kernels.cpu.machine_code.instructions import EMIT, INDEX, STORED, Lanes, Value, element, repeat, whole_part
from runner.kernels.elementwise import Program, computed_in

_POINTER = ir.PointerType()


@dataclass(frozen=True)
class ElementLoop:
    """A loop to compile. wide: for each input, True if it has the shape of the result, False if it is a scalar."""

    program: Program
    dtype: str
    wide: tuple[bool, ...]


COMPILING = threading.Lock()
"""Held during compilation, so that several threads do not compile the same loop."""


class ArrayLoop:
    """A compiled function ``slice`` that Python calls. Calls release the GIL."""

    def __init__(self, text: str) -> None:
        """Compile a module of LLVM assembly."""
        self._code = MachineCode(text)
        self._slice: Any = cffi.FFI().cast("void (*)(intptr_t, int64_t, int64_t)", self._code.address("slice"))

    def __call__(self, arrays: Sequence[Array], count: int) -> None:
        """Run the loop from 0 to ``count - 1`` over arrays in C order."""
        addresses = np.array([each.ctypes.data for each in arrays], np.intp)
        self._slice(addresses.ctypes.data, 0, count)


def slice_module(name: str, arrays: int, body: Callable[[ir.IRBuilder, list[Value], Value, Value], None]) -> str:
    """Return the LLVM module with the function ``slice``, whose instructions ``body`` appends.

    body: (builder, addresses of the arrays, begin, end).
    """
    function = ir.Function(ir.Module(name), ir.FunctionType(ir.VoidType(), [_POINTER, INDEX, INDEX]), "slice")
    addresses, begin, end = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    bases = [builder.load(element(builder, addresses, INDEX, INDEX(k)), typ=_POINTER) for k in range(arrays)]
    body(builder, bases, begin, end)
    builder.ret_void()
    return str(function.module)


def write_module(loop: ElementLoop, vector_bytes: int) -> str:
    """Return the LLVM module with the function ``slice``."""
    wide = loop.program.widened(loop.wide)

    def write(builder: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        shared = shared_values(builder, loop, bases)

        def body(lanes: Lanes) -> Callable[[Value], None]:
            spread = {number: lanes.spread(builder, value) for number, value in shared.items()}

            def emit(index: Value) -> None:
                places = [element(builder, base, STORED[loop.dtype], index) for base in bases]
                values = dict(spread)
                for number in range(len(loop.wide)):
                    if wide[number]:
                        values[number] = lanes.load(builder, loop.dtype, places[number])
                emit_steps(builder, loop, lanes, values, wide)
                for number, place in zip(loop.program.outputs, places[len(loop.wide) :], strict=True):
                    lanes.store(builder, loop.dtype, values[number], place)

            return emit

        sweep(builder, computed_in(loop.dtype), vector_bytes, begin, end, body)

    return slice_module("elementwise", len(loop.wide) + len(loop.program.outputs), write)


def sweep(
    builder: ir.IRBuilder,
    dtype: str,
    vector_bytes: int,
    begin: Value,
    end: Value,
    body: Callable[[Lanes], Callable[[Value], None]],
) -> None:
    """Append loops over begin..end-1: whole vectors, then single numbers.

    body: (lanes) -> function that appends the instructions for ``lanes.count`` elements from an index on.
    """
    for lanes in (Lanes.filling(dtype, vector_bytes), Lanes(dtype, 1)):
        stop = builder.add(begin, whole_part(builder, builder.sub(end, begin), lanes.count))
        repeat(builder, begin, stop, lanes.count, body(lanes))
        begin = stop


def shared_values(builder: ir.IRBuilder, loop: ElementLoop, bases: Sequence[Value]) -> dict[int, Value]:
    """Append, before the loop, instructions for values that all elements share; return value number -> value."""
    lanes = Lanes(computed_in(loop.dtype), 1)
    wide = loop.program.widened(loop.wide)
    values = {k: lanes.load(builder, loop.dtype, bases[k]) for k in range(len(loop.wide)) if not wide[k]}
    emit_steps(builder, loop, lanes, values, [not each for each in wide])
    return values


def emit_steps(
    builder: ir.IRBuilder, loop: ElementLoop, lanes: Lanes, values: dict[int, Value], chosen: Sequence[bool]
) -> None:
    """Append the steps that ``chosen`` selects; add their results to ``values``. Both are indexed by value number."""
    for number, step in enumerate(loop.program.steps, loop.program.inputs):
        if chosen[number]:
            operands = [values[o] if isinstance(o, int) else lanes.constant(o) for o in step.operands]
            values[number] = EMIT[step.function](builder, lanes, *operands)
