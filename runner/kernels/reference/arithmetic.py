"""Element-wise arithmetic: NumPy's own functions, which keep the dtype of their operands."""

from __future__ import annotations

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.registry import reference

_FUNCTIONS: dict[str, np.ufunc] = {
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
}

for _op, _function in _FUNCTIONS.items():
    reference(_op)(_function)


@reference("pow")
def power(x: Array, *, exponent: float) -> Array:
    return np.power(x, exponent)
