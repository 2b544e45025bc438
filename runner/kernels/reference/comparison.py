"""Element-wise comparison and choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.registry import reference

_FUNCTIONS: dict[str, Callable[..., Array]] = {
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
