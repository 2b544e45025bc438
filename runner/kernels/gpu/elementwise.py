"""Element-wise ops as generated sources: programs, single functions, sums, comparisons and choice.

exp, log, log1p, tanh, sigmoid and pow are CUDA's functions, in float32 for bfloat16: a few units in the last place
from NumPy's. All other functions give the bits of the reference kernels.
"""

from collections.abc import Callable
from functools import partial

from runner.kernels.contract import Attributes, Kernel, Specs
from runner.kernels.elementwise import FUNCTIONS, Program, Step, parse
from runner.kernels.gpu.element_kernels import ElementsOf, element_kernel
from runner.kernels.gpu.element_loops import Elements
from runner.kernels.gpu.expressions import expression, literal, statements
from runner.kernels.gpu.runtime import Runtime
from runner.kernels.gpu.source import computed_in

_OPERATORS = {"greater": ">", "greater_equal": ">=", "less": "<", "equal": "=="}

ProgramOf = Callable[[Attributes, int], Program]
"""(attributes, number of inputs) -> the program of a node."""


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of element-wise ops, in every dtype of their ops."""
    programs: dict[str, ProgramOf] = {"elementwise": _written}
    programs |= {function: partial(_single, function) for function in FUNCTIONS}
    elements: dict[str, ElementsOf] = {op: partial(_elements, program_of) for op, program_of in programs.items()}
    elements |= {op: partial(_unary, op) for op in ("exp", "log", "log1p", "sign", "sigmoid", "tanh")}
    elements |= {op: partial(_compare, operator) for op, operator in _OPERATORS.items()}
    elements |= {"pow": _power, "select": _select, "add_n": _sum, "all_reduce": _sum}
    return [element_kernel(runtime, op, elements_of) for op, elements_of in elements.items()]


def _written(attributes: Attributes, inputs: int) -> Program:
    return parse(attributes["program"], inputs, attributes["outputs"])


def _single(function: str, attributes: Attributes, inputs: int) -> Program:
    return Program(inputs, (Step(function, tuple(range(inputs))),), (inputs,))


def _elements(program_of: ProgramOf, attributes: Attributes, inputs: Specs, outputs: Specs) -> Elements:
    dtype = inputs[0].dtype
    lines, results = statements(program_of(attributes, len(inputs)), dtype)
    return Elements((dtype,) * len(inputs), (dtype,) * len(outputs), lines, results)


def _sum(attributes: Attributes, inputs: Specs, outputs: Specs) -> Elements:
    """Add from left to right; a single term is copied."""
    count, dtype = len(inputs), inputs[0].dtype
    if count == 1:
        return Elements((dtype,), (dtype,), (), ("x0",))
    others = [Step("add", (count + term - 2, term)) for term in range(2, count)]
    lines, results = statements(Program(count, (Step("add", (0, 1)), *others), (2 * count - 2,)), dtype)
    return Elements((dtype,) * count, (dtype,), lines, results)


def _unary(function: str, attributes: Attributes, inputs: Specs, outputs: Specs) -> Elements:
    """One function of one input."""
    dtype = inputs[0].dtype
    return Elements((dtype,), (dtype,), (), (expression(function, computed_in(dtype), "x0"),))


def _power(attributes: Attributes, inputs: Specs, outputs: Specs) -> Elements:
    """A power, or one correctly rounded product for squares."""
    dtype, exponent = inputs[0].dtype, attributes["exponent"]
    computed = computed_in(dtype)
    if exponent == 2.0:
        return Elements((dtype,), (dtype,), (), (expression("square", computed, "x0"),))
    return Elements((dtype,), (dtype,), (), (expression("pow", computed, "x0", literal(exponent, computed)),))


def _compare(operator: str, attributes: Attributes, inputs: Specs, outputs: Specs) -> Elements:
    return Elements((inputs[0].dtype,) * 2, ("bool",), (), (f"x0 {operator} x1",))


def _select(attributes: Attributes, inputs: Specs, outputs: Specs) -> Elements:
    dtype = outputs[0].dtype
    return Elements(("bool", dtype, dtype), (dtype,), (), ("x0 ? x1 : x2",))
