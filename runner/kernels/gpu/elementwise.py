"""Op ``elementwise``, every op that is one function of its language, and sums: programs as generated sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from runner.kernels.contract import Attributes, Kernel, Spec
from runner.kernels.elementwise import FUNCTIONS, Program, Step, parse
from runner.kernels.gpu.element_kernels import element_kernel
from runner.kernels.gpu.element_loops import Elements
from runner.kernels.gpu.expressions import statements
from runner.kernels.gpu.runtime import Runtime

ProgramOf = Callable[[Attributes, int], Program]
"""(attributes, number of inputs) -> the program of a node."""


def kernels(runtime: Runtime) -> list[Kernel]:
    """The kernels of programs, in every dtype that their ops take."""
    programs: dict[str, ProgramOf] = {"elementwise": _written}
    programs |= {function: partial(_single, function) for function in FUNCTIONS}
    found = [element_kernel(runtime, op, partial(_elements, program_of)) for op, program_of in programs.items()]
    return [*found, *(element_kernel(runtime, op, _sum) for op in ("add_n", "all_reduce"))]


def _written(attributes: Attributes, inputs: int) -> Program:
    return parse(attributes["program"], inputs, attributes["outputs"])


def _single(function: str, attributes: Attributes, inputs: int) -> Program:
    return Program(inputs, (Step(function, tuple(range(inputs))),), (inputs,))


def _elements(
    program_of: ProgramOf, attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec]
) -> Elements:
    dtype = inputs[0].dtype
    lines, results = statements(program_of(attributes, len(inputs)), dtype)
    return Elements((dtype,) * len(inputs), (dtype,) * len(outputs), lines, results)


def _sum(attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Elements:
    """From left to right; one term alone is no sum."""
    count, dtype = len(inputs), inputs[0].dtype
    if count == 1:
        return Elements((dtype,), (dtype,), (), ("x0",))
    others = [Step("add", (count + term - 2, term)) for term in range(2, count)]
    lines, results = statements(Program(count, (Step("add", (0, 1)), *others), (2 * count - 2,)), dtype)
    return Elements((dtype,) * count, (dtype,), lines, results)
