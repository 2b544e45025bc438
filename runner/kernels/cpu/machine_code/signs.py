"""Sign analysis of element-wise programs: whether zero inputs give zero outputs.

The padding of a layout must stay zero. A program may run over the padding if it keeps zeros for all scalars. The
analysis assumes that scalars are finite and not zero, and that results computed from them neither overflow nor
underflow.
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from runner.kernels.elementwise import Operand, Program

Sign = int | None
"""-1, 0 or 1; None is an unknown value, which may be infinite or NaN."""

Signs = frozenset[Sign]

_ZERO: Signs = frozenset({0})
_NOT_ZERO: Signs = frozenset({-1, 1})
_UNKNOWN: Signs = frozenset({None})


def keeps_zeros(program: Program, wide: Sequence[bool], dtype: str) -> bool:
    """Whether all outputs are zero if all ``wide`` inputs are zero. wide: for each input, False for a scalar."""
    known = [_ZERO if each else _NOT_ZERO for each in wide]
    for step in program.steps:
        operands = [known[o] if isinstance(o, int) else _of_literal(o, dtype) for o in step.operands]
        known.append(_apply(step.function, operands))
    return all(known[number] == _ZERO for number in program.outputs)


def _of_literal(value: Operand, dtype: str) -> Signs:
    with np.errstate(all="ignore"):
        rounded = np.dtype(dtype).type(value)
    return frozenset({int(np.sign(rounded))}) if np.isfinite(rounded) else _UNKNOWN


def _apply(function: str, operands: Sequence[Signs]) -> Signs:
    """All signs that the result may have."""
    return frozenset().union(*(_SIGNS[function](*signs) for signs in product(*operands)))


def _add(a: Sign, b: Sign) -> set[Sign]:
    if a is None or b is None:
        return {None}
    if a and b and a != b:
        return {-1, 0, 1}
    return {a or b}


def _mul(a: Sign, b: Sign) -> set[Sign]:
    return {None} if a is None or b is None else {a * b}


def _div(a: Sign, b: Sign) -> set[Sign]:
    return _mul(a, b or None)


def _neg(x: Sign) -> set[Sign]:
    return {None if x is None else -x}


def _sub(a: Sign, b: Sign) -> set[Sign]:
    (opposite,) = _neg(b)
    return _add(a, opposite)


def _abs(x: Sign) -> set[Sign]:
    return {None if x is None else abs(x)}


def _sqrt(x: Sign) -> set[Sign]:
    return {None if x is None or x < 0 else x}


def _maximum(a: Sign, b: Sign) -> set[Sign]:
    return {None if a is None or b is None else max(a, b)}


def _minimum(a: Sign, b: Sign) -> set[Sign]:
    return {None if a is None or b is None else min(a, b)}


def _relu_gradient(dy: Sign, y: Sign) -> set[Sign]:
    return {dy, 0} if y is None else {dy if y > 0 else 0}


_SIGNS: dict[str, Callable[..., set[Sign]]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "maximum": _maximum,
    "minimum": _minimum,
    "neg": _neg,
    "square": lambda x: _mul(x, x),
    "sqrt": _sqrt,
    "abs": _abs,
    "relu": lambda x: _maximum(x, 0),
    "relu_gradient": _relu_gradient,
}
"""Function of the language -> the signs its result may have, from those of its operands."""
