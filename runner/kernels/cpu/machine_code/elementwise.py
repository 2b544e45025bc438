"""Kernels of element-wise ops, which run a whole program (see ``kernels.elementwise``) in one pass over memory."""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

from runner.kernels.contract import Arrangement, Attributes, Bound, Buffers, Kernel, Layout, Offers, Spec, Specs, plain
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.compiler import MachineCode, host
from runner.kernels.cpu.machine_code.instructions import ITEMSIZE
from runner.kernels.cpu.machine_code.loops import ElementLoop, write_module
from runner.kernels.elementwise import FUNCTIONS, Program, Step, computed_in, parse, single, sum_of, written
from runner.kernels.memory import ALIGNMENT
from runner.kernels.registry import Registry


def keeps_zeros(program: Program, wide: Sequence[bool], dtype: str) -> bool:
    """Return whether a program maps arrays of zeros and any scalars to zeros. wide: True for arrays."""
    number = np.dtype(dtype).type
    # NaN stands for the unknown value of a scalar, and for each value that depends on it.
    values: list[Any] = [number(0.0 if each else math.nan) for each in wide]
    with np.errstate(all="ignore"):
        for step in program.steps:
            operands = [values[o] if isinstance(o, int) else number(o) for o in step.operands]
            result = FUNCTIONS[step.function][1](*operands)
            # The gradient of a ReLU passes dy only if y > 0, which is unknown if y is.
            is_unknown = step.function == "relu_gradient" and operands[0] != 0 and np.isnan(operands[1])
            values.append(number(math.nan) if is_unknown else result)
    return all(values[output] == 0 for output in program.outputs)


LIBRARY = "llvm"
PRIORITY = 10
DTYPES = frozenset({"float32", "float64", "bfloat16"})
"""float64 is supported for scalars only; graphs in float32 contain a few float64 scalars."""

ProgramOf = Callable[[Attributes, int], Program | None]
"""(attributes, number of inputs) -> the program of a node, or None if the node has no program."""


def register(registry: Registry) -> None:
    """Add the kernels of elementwise, add_n, all_reduce, fill, and each op that is one element-wise function."""
    programs: dict[str, ProgramOf] = {"elementwise": written, "add_n": _sum, "all_reduce": _sum, "fill": _filled}
    programs |= {function: partial(single, function) for function in FUNCTIONS}
    for op, program_of in programs.items():
        registry.add(
            Kernel(op, "cpu", LIBRARY, PRIORITY, DTYPES, partial(_arrange, program_of), partial(_bind, program_of))
        )


def _sum(attributes: Attributes, inputs: int) -> Program | None:
    """Return the program that adds the inputs, or None for a single input."""
    return sum_of(inputs) if inputs > 1 else None


def _filled(attributes: Attributes, inputs: int) -> Program:
    """Return the program value * 1, which keeps every value, including the sign of zeros."""
    return Program(inputs, (Step("mul", (attributes["value"], 1.0)),), (inputs,))


def _arrange(
    program_of: ProgramOf, attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers
) -> Arrangement | None:
    """Arrange all arrays in one layout; return None for nodes that these kernels do not support.

    Not supported: float64 arrays, derived functions in float64, broadcast arrays, unequal dtypes, missing programs.
    """
    result = outputs[0]
    alike = all(spec.dtype == result.dtype and spec.shape in (result.shape, ()) for spec in (*inputs, *outputs))
    if not alike or result.dtype not in DTYPES or (result.dtype == "float64" and result.shape):
        return None
    program = program_of(attributes, len(inputs))
    if program is None or (result.dtype == "float64" and program.is_derived):
        return None
    wide = _wide(inputs, result)
    layout = _layout(program, wide, result, offered)
    return Arrangement(
        tuple(layout if each else plain(spec) for each, spec in zip(wide, inputs, strict=True)),
        (layout,) * len(outputs),
        in_place=tuple(product([k for k, each in enumerate(wide) if each], range(len(outputs)))),
    )


def _wide(inputs: Sequence[Spec], result: Spec) -> tuple[bool, ...]:
    """Return, for each input, True if it has the shape of the result and False if it is a scalar."""
    return tuple(spec.shape == result.shape for spec in inputs)


def _layout(program: Program, wide: Sequence[bool], result: Spec, offered: Offers) -> Layout:
    """Return the first offer that is not C order and has no padding or padding that stays zero; else C order."""
    offers = [layout for layout, each in zip(offered, wide, strict=True) if each and layout is not None]
    for layout in offers:
        if not layout.is_plain and (
            layout.nbytes == result.nbytes or keeps_zeros(program, wide, computed_in(result.dtype))
        ):
            return layout
    return plain(result)


def _bind(program_of: ProgramOf, attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    result = buffers.outputs[0]
    program = program_of(attributes, len(buffers.inputs))
    assert program is not None, "bound without an arrangement"
    wide = _wide([operand.spec for operand in buffers.inputs], result.spec)
    code = _compiled(program.text, program.inputs, program.outputs, result.spec.dtype, wide)
    itemsize = ITEMSIZE[result.spec.dtype]
    count, grain = result.layout.nbytes // itemsize, ALIGNMENT // itemsize
    return threads.over(code, (*buffers.inputs, *buffers.outputs), count, grain)


@cache
def _compiled(text: str, inputs: int, outputs: tuple[int, ...], dtype: str, wide: tuple[bool, ...]) -> MachineCode:
    """Compile a program. Its text is the cache key, because parsed operands 1 (a value number) and 1.0 are equal."""
    return MachineCode(write_module(ElementLoop(parse(text, inputs, outputs), dtype, wide), host().vector_bytes))
