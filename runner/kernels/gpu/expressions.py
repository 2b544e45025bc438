"""Functions of the element-wise language, and a few more, as expressions of CUDA C++.

Every function of the language consists of IEEE operations that are rounded separately: sources are compiled without
contraction. NaN propagates as in NumPy, and of two zeros with different signs a maximum or minimum is the second, as on
the host. Integers wrap around, as in NumPy.
"""

import math

import numpy as np

from runner.kernels.elementwise import Operand as Value
from runner.kernels.elementwise import Program
from runner.kernels.gpu.source import C_TYPES, computed_in

_EXTREMES = {
    # A comparison with NaN is false: the result is b if b is NaN, and a if a is NaN.
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
    """Return a function of operands, computed in ``dtype``, as an expression; raises KeyError for others."""
    if dtype in _UNSIGNED:
        return _INTEGERS[function].format(*operands, c=C_TYPES[dtype], u=_UNSIGNED[dtype])
    return _FLOATS[function].format(*operands)


def literal(value: float, dtype: str) -> str:
    """Return a literal that equals a float32 or float64 number bit for bit."""
    with np.errstate(over="ignore"):
        rounded = float(np.dtype(dtype).type(value))
    if math.isfinite(rounded):
        return f"({rounded.hex()}{'f' if dtype == 'float32' else ''})"
    bits = np.array(rounded, dtype).tobytes()[::-1].hex()
    return f"__uint_as_float(0x{bits}u)" if dtype == "float32" else f"__longlong_as_double(0x{bits}ll)"


def statements(program: Program, dtype: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the statements of a program over x0, x1, ... of ``dtype``, and the names of its outputs."""
    computed = computed_in(dtype)
    names = [f"x{number}" for number in range(program.inputs)]

    def name_of(value: Value) -> str:
        return names[value] if isinstance(value, int) else literal(value, computed)

    lines = []
    for step in program.steps:
        name = f"v{len(names)}"
        result = expression(step.function, computed, *map(name_of, step.operands))
        lines.append(f"const {C_TYPES[computed]} {name} = {result};")
        names.append(name)
    return tuple(lines), tuple(names[number] for number in program.outputs)
