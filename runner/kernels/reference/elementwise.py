"""Element-wise arithmetic, comparison, choice, and chains of them: NumPy functions, which keep the dtype."""

from collections.abc import Callable

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.elementwise import evaluate, parse
from runner.kernels.registry import reference


@reference("pow")
def power(x: Array, *, exponent: float) -> Array:
    return np.power(x, exponent)


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "square": np.square,
    "abs": np.absolute,
    "sign": np.sign,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "equal": np.equal,
    "select": np.where,
    "maximum": np.maximum,
    "minimum": np.minimum,
}

for _op, _function in _FUNCTIONS.items():
    reference(_op)(_function)


@reference("elementwise")
def elementwise(*inputs: Array, program: str, outputs: tuple[int, ...]) -> tuple[Array, ...]:
    return evaluate(parse(program, len(inputs), outputs), inputs)
