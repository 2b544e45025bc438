"""Rows by number: selection, the order of additions, and indices out of range."""

from collections.abc import Callable

import numpy as np
import pytest

from runner.kernels.contract import Array
from runner.kernels.reference.rows import gather, one_hot, scatter_add


def test_gather_takes_rows() -> None:
    params = np.arange(6).reshape(3, 2)
    assert gather(params, np.array([[2, 0], [2, 1]])).tolist() == [[[4, 5], [0, 1]], [[4, 5], [2, 3]]]


def test_scatter_add_adds_rows_in_the_order_of_the_indices() -> None:
    # In float32 1e8 + 1 is 1e8.
    updates = np.array([1e8, 1.0, -1e8, 1.0, 5.0], np.float32)
    assert scatter_add(np.array([1, 1, 1, 1, 0]), updates, rows=3).tolist() == [5.0, 1.0, 0.0]


def test_one_hot_marks_the_index() -> None:
    assert one_hot(np.array([2, 0]), depth=3, dtype="float32").tolist() == [[0, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("index", [-1, 4])
@pytest.mark.parametrize(
    ("op", "run"),
    [
        ("gather", lambda indices: gather(np.zeros((4, 2)), indices)),
        ("scatter_add", lambda indices: scatter_add(indices, np.zeros((1, 2)), rows=4)),
        ("one_hot", lambda indices: one_hot(indices, depth=4, dtype="float64")),
    ],
)
def test_an_index_out_of_range_is_named(op: str, run: Callable[[Array], Array], index: int) -> None:
    with pytest.raises(IndexError, match=rf"op '{op}': index {index} at \[0, 1\] is outside 0..3"):
        run(np.array([[0, index]]))
