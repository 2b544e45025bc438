"""Kernels of element-wise ops: one pass over memory for a whole program."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product

from runner.kernels.contract import Arrangement, Attributes, Bound, Buffers, Kernel, Layout, Offers, Spec, Specs, plain
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.compiler import MachineCode, host
from runner.kernels.cpu.machine_code.elements import ITEMSIZE
from runner.kernels.cpu.machine_code.loops import ElementLoop, write_module
from runner.kernels.cpu.machine_code.signs import keeps_zeros
from runner.kernels.elementwise import FUNCTIONS, Program, Step, computed_in, parse
from runner.kernels.registry import Registry

LIBRARY = "llvm"
PRIORITY = 10
DTYPES = frozenset({"float32", "float64", "bfloat16"})
"""float64 for scalars only: float32 programs have a few, and tests compare these kernels with float64 programs."""

ProgramOf = Callable[[Attributes, int], Program | None]
"""(attributes, number of inputs) -> the program of a node, or None if it has none."""


def register(registry: Registry) -> None:
    """Add the kernels of op ``elementwise``, of every op that is one function of its language, of add_n and fill."""
    programs: dict[str, ProgramOf] = {"elementwise": _written, "add_n": _sum, "all_reduce": _sum, "fill": _filled}
    programs |= {function: partial(_single, function) for function in FUNCTIONS}
    for op, program_of in programs.items():
        registry.add(
            Kernel(op, "cpu", LIBRARY, PRIORITY, DTYPES, partial(_arrange, program_of), partial(_bind, program_of))
        )


def _written(attributes: Attributes, inputs: int) -> Program:
    return parse(attributes["program"], inputs, attributes["outputs"])


def _single(function: str, attributes: Attributes, inputs: int) -> Program:
    return Program(inputs, (Step(function, tuple(range(inputs))),), (inputs,))


def _sum(attributes: Attributes, inputs: int) -> Program | None:
    """Add from left to right; None for a single term."""
    if inputs == 1:
        return None
    first = Step("add", (0, 1))
    others = [Step("add", (inputs + term - 2, term)) for term in range(2, inputs)]
    return Program(inputs, (first, *others), (2 * inputs - 2,))


def _filled(attributes: Attributes, inputs: int) -> Program:
    """A product with 1, which keeps every value including the sign of zeros."""
    return Program(inputs, (Step("mul", (attributes["value"], 1.0)),), (inputs,))


def _arrange(
    program_of: ProgramOf,
    attributes: Attributes,
    inputs: Specs,
    outputs: Specs,
    offered: Offers,
) -> Arrangement | None:
    """Everything in one layout: plain, or that of an input. None if shapes or dtypes differ, or for float64 arrays."""
    result = outputs[0]
    alike = all(spec.dtype == result.dtype and spec.shape in (result.shape, ()) for spec in (*inputs, *outputs))
    if not alike or result.dtype not in DTYPES or (result.dtype == "float64" and result.shape):
        return None
    program = program_of(attributes, len(inputs))
    if program is None:
        return None
    wide = _wide(inputs, result)
    layout = _layout(program, wide, result, offered)
    return Arrangement(
        tuple(layout if each else plain(spec) for each, spec in zip(wide, inputs, strict=True)),
        (layout,) * len(outputs),
        in_place=tuple(product([k for k, each in enumerate(wide) if each], range(len(outputs)))),
    )


def _wide(inputs: Sequence[Spec], result: Spec) -> tuple[bool, ...]:
    """For each input, whether it has the shape of the result; otherwise it is a scalar."""
    return tuple(spec.shape == result.shape for spec in inputs)


def _layout(program: Program, wide: Sequence[bool], result: Spec, offered: Offers) -> Layout:
    """The first offered layout that the program can run in, else plain."""
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
    assert program is not None, "only what was arranged is bound"
    wide = _wide([operand.spec for operand in buffers.inputs], result.spec)
    code = _compiled(program.text, program.inputs, program.outputs, result.spec.dtype, wide)
    itemsize = ITEMSIZE[result.spec.dtype]
    count, grain = result.layout.nbytes // itemsize, threads.LINE_BYTES // itemsize
    return threads.over(code, (*buffers.inputs, *buffers.outputs), count, grain)


@cache
def _compiled(text: str, inputs: int, outputs: tuple[int, ...], dtype: str, wide: tuple[bool, ...]) -> MachineCode:
    """The loop of a program, cached by its text: a parsed program with literal 1.0 equals one that reads value 1."""
    return MachineCode(write_module(ElementLoop(parse(text, inputs, outputs), dtype, wide), host().vector_bytes))
