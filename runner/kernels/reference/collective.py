"""Sums over workers: of parts that are here."""

from __future__ import annotations

from functools import reduce

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.registry import reference


@reference("all_reduce")
def all_reduce(*parts: Array, group: str, rank: int) -> Array:
    return reduce(np.add, parts)
