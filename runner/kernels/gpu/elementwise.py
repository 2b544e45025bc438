"""Element-wise ops as generated sources: programs, single functions, sums, comparisons and selection.

Every function of the element-wise language consists of IEEE operations that are rounded separately, because sources are
compiled without contraction to fused multiply-adds. Results equal those of the reference kernels bit for bit. The other
ops (exp, log, log1p, tanh, sigmoid, pow) and float64 erf use CUDA's functions (in float32 for bfloat16) and differ
from NumPy by a few units in the last place. NaN propagates and integers wrap as in NumPy. The maximum or minimum of +0
and -0 is the second operand, as on the host.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from runner.kernels.contract import Attributes, Kernel, Specs
from runner.kernels.elementwise import DERIVED, FUNCTIONS, Program, computed_in, single, sum_of, written
from runner.kernels.gpu.element_kernels import ElementsOf, element_kernel
from runner.kernels.gpu.element_loops import Elements
from runner.kernels.gpu.runtime import Runtime
from runner.kernels.gpu.source import C_TYPES

_EXTREMES = {
    # With NaN, > and < are false and != is true, so the result is NaN if either operand is NaN.
    "maximum": "({0} > {1} || {0} != {0} ? {0} : {1})",
    "minimum": "({0} < {1} || {0} != {0} ? {0} : {1})",
}

_SIGN = "({0} > 0 ? 1 : {0} < 0 ? -1 : {0} == 0 ? 0 : {0})"

_FLOATS = {
    **_EXTREMES,
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "neg": "(-{0})",
    "square": "({0} * {0})",
    "sqrt": "sqrt({0})",
    "erf": "erf({0})",
    "abs": "fabs({0})",
    "relu": "({0} > 0 || {0} != {0} ? {0} : 0)",
    "relu_gradient": "({1} > 0 ? {0} : 0)",
    "sign": _SIGN,
    "exp": "exp({0})",
    "log": "log({0})",
    "log1p": "log1p({0})",
    "tanh": "tanh({0})",
    # exp(-fabs(x)) never overflows, unlike exp(-x).
    "sigmoid": "(({0} >= 0 ? 1 : exp(-fabs({0}))) / (1 + exp(-fabs({0}))))",
    "pow": "pow({0}, {1})",
}

_INTEGERS = {
    **_EXTREMES,
    "add": "({c})(({u}){0} + ({u}){1})",
    "sub": "({c})(({u}){0} - ({u}){1})",
    "mul": "({c})(({u}){0} * ({u}){1})",
    "neg": "({c})(0 - ({u}){0})",
    "square": "({c})(({u}){0} * ({u}){0})",
    "abs": "({c})({0} < 0 ? 0 - ({u}){0} : ({u}){0})",
    "sign": _SIGN,
}

_UNSIGNED = {"int32": "unsigned int", "int64": "unsigned long long"}


def expression(function: str, dtype: str, *operands: str) -> str:
    """Return a C++ expression for a function of operands of ``dtype``. Raises KeyError for an unknown function."""
    if dtype in _UNSIGNED:
        return _INTEGERS[function].format(*operands, c=C_TYPES[dtype], u=_UNSIGNED[dtype])
    return _FLOATS[function].format(*operands)


def literal(value: float, dtype: str) -> str:
    """Return a C++ literal that equals a float32 or float64 number bit for bit."""
    with np.errstate(over="ignore"):
        rounded = float(np.dtype(dtype).type(value))
    if math.isfinite(rounded):
        return f"({rounded.hex()}{'f' if dtype == 'float32' else ''})"
    bits = np.array(rounded, dtype).tobytes()[::-1].hex()
    return f"__uint_as_float(0x{bits}u)" if dtype == "float32" else f"__longlong_as_double(0x{bits}ll)"


def statements(program: Program, dtype: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the C++ statements of a program on inputs x0, x1, ... of ``dtype``, and the names of its outputs."""
    computed = computed_in(dtype)
    lines: list[str] = []

    def apply(function: str, *operands: str | float) -> str:
        """Append the statement that computes a function, and return the name of the result."""
        if function in DERIVED and computed == "float32":
            return str(DERIVED[function](apply, *operands))
        name = f"v{program.inputs + len(lines)}"
        result = expression(function, computed, *(o if isinstance(o, str) else literal(o, computed) for o in operands))
        lines.append(f"const {C_TYPES[computed]} {name} = {result};")
        return name

    values = [f"x{number}" for number in range(program.inputs)]
    for step in program.steps:
        values.append(apply(step.function, *(values[o] if isinstance(o, int) else o for o in step.operands)))
    return tuple(lines), tuple(values[number] for number in program.outputs)


_OPERATORS = {"greater": ">", "greater_equal": ">=", "less": "<", "equal": "=="}

ProgramOf = Callable[[Attributes, int], Program]
"""(attributes, number of inputs) -> the program of a node."""


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of element-wise ops, in every dtype that the ops support."""
    programs: dict[str, ProgramOf] = {"elementwise": written}
    programs |= {function: partial(single, function) for function in FUNCTIONS}
    elements: dict[str, ElementsOf] = {op: partial(_elements, program_of) for op, program_of in programs.items()}
    elements |= {op: partial(_unary, op) for op in ("exp", "log", "log1p", "sign", "sigmoid", "tanh")}
    elements |= {op: partial(_compare, operator) for op, operator in _OPERATORS.items()}
    elements |= {"pow": _power, "select": _select, "add_n": _sum, "all_reduce": _sum}
    return [element_kernel(runtime, op, elements_of) for op, elements_of in elements.items()]


def _elements(program_of: ProgramOf, attributes: Attributes, inputs: Specs, outputs: Specs) -> Elements:
    dtype = inputs[0].dtype
    lines, results = statements(program_of(attributes, len(inputs)), dtype)
    return Elements((dtype,) * len(inputs), (dtype,) * len(outputs), lines, results)


def _sum(attributes: Attributes, inputs: Specs, outputs: Specs) -> Elements:
    """Return the operation that adds all inputs from left to right; a single input is copied."""
    count, dtype = len(inputs), inputs[0].dtype
    if count == 1:
        return Elements((dtype,), (dtype,), (), ("x0",))
    lines, results = statements(sum_of(count), dtype)
    return Elements((dtype,) * count, (dtype,), lines, results)


def _unary(function: str, attributes: Attributes, inputs: Specs, outputs: Specs) -> Elements:
    dtype = inputs[0].dtype
    return Elements((dtype,), (dtype,), (), (expression(function, computed_in(dtype), "x0"),))


def _power(attributes: Attributes, inputs: Specs, outputs: Specs) -> Elements:
    """Return the operation x ** exponent; a square is computed as one correctly rounded product."""
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
