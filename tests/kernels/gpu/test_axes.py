"""Axes of strided tensors, merged."""

from __future__ import annotations

import numpy as np
import pytest

from runner.kernels.gpu.axes import arguments, merged
from runner.kernels.gpu.copies import in_units


def test_axes_that_walk_on_are_one() -> None:
    assert merged([(2, 12), (3, 4), (4, 1)]) == [(24, 1)]


def test_axes_are_in_the_order_of_the_last_tensor() -> None:
    assert merged([(4, 1, 3), (3, 4, 1)]) == [(4, 1, 3), (3, 4, 1)]
    assert merged([(3, 4, 1), (4, 1, 3)]) == [(4, 1, 3), (3, 4, 1)]


def test_axes_of_one_element_disappear() -> None:
    assert merged([(1, 7), (5, 1), (1, 0)]) == [(5, 1)]
    assert merged([(1, 1)]) == []


def test_channels_of_channels_last_stay_apart_from_the_rest() -> None:
    # (2, 3, 4, 5) with channels last: distances 60, 1, 15, 3.
    assert merged([(2, 60), (4, 15), (5, 3)]) == [(40, 3)]


def test_missing_axes_are_added_behind() -> None:
    assert arguments([(4, 1, 3), (3, 4, 1)], 3, 2) == [3, 1, 1, 4, 0, 3, 1, 0]
    assert all(isinstance(each, np.int64) for each in arguments([], 2, 1))


def test_more_axes_than_a_kernel_takes_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 axes for a kernel that takes 2"):
        arguments([(2, 1)] * 3, 2, 1)


@pytest.mark.parametrize(
    ("block", "itemsize", "addresses", "expected"),
    [
        ([(6, 1, 1)], 4, (64, 64), (8, [(3, 1, 1)])),
        ([(6, 1, 1)], 4, (64, 68), (4, [(6, 1, 1)])),
        ([(5, 1, 1)], 4, (64, 64), (4, [(5, 1, 1)])),
        ([(3, 8, 16), (4, 1, 1)], 2, (64, 64), (8, [(3, 2, 4), (1, 1, 1)])),
        ([(3, 8, 6), (4, 1, 1)], 2, (64, 64), (4, [(3, 4, 3), (2, 1, 1)])),
        ([(3, 8, 16), (4, 2, 1)], 2, (64, 64), (2, [(3, 8, 16), (4, 2, 1)])),
        ([], 4, (64, 64), (4, [])),
    ],
)
def test_copies_are_in_the_largest_unit_that_everything_is_a_multiple_of(
    block: list[tuple[int, ...]], itemsize: int, addresses: tuple[int, ...], expected: object
) -> None:
    assert in_units(block, itemsize, addresses) == expected
