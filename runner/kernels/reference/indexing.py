"""Rows by number. NumPy counts negative indices from the end, so the range is checked here."""

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.registry import reference


def check_range(op: str, indices: Array, count: int) -> None:
    """Raise IndexError naming the first index outside 0..count-1 and its place."""
    error = outside_range(op, indices, count)
    if error is not None:
        raise error


def outside_range(op: str, indices: Array, count: int) -> IndexError | None:
    """Return the error that ``check_range`` raises, or None."""
    wrong = (indices < 0) | (indices >= count)
    if not wrong.any():
        return None
    place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
    return IndexError(f"op {op!r}: index {indices[place]} at {list(place)} is outside 0..{count - 1}")


@reference("gather")
def gather(params: Array, indices: Array) -> Array:
    check_range("gather", indices, len(params))
    return params[indices]


@reference("scatter_add")
def scatter_add(indices: Array, updates: Array, *, rows: int) -> Array:
    check_range("scatter_add", indices, rows)
    total = np.zeros((rows, *updates.shape[indices.ndim :]), updates.dtype)
    np.add.at(total, indices, updates)
    return total


@reference("one_hot")
def one_hot(indices: Array, *, depth: int, dtype: str) -> Array:
    check_range("one_hot", indices, depth)
    matches: Array = indices[..., None] == np.arange(depth)
    return matches.astype(dtype)
