import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runner.nn import Padding, TooSmallError, place

SIDES = st.integers(1, 40)
WINDOWS = st.integers(1, 7)
STRIDES = st.integers(1, 5)


def count(side: int, window: int, stride: int, padding: Padding, *, ceil: bool = False) -> int:
    """Return the number of windows along one side, as the ops count them."""
    placed = place((side, side), window, stride, padding, ceil=ceil)
    return (side + placed.padding[0] + placed.padding[1] - window) // stride + 1


@pytest.mark.parametrize(
    ("padding", "expected"),
    [("valid", (0, 0, 0, 0)), (2, (2, 2, 2, 2)), ((1, 2, 3, 0), (1, 2, 3, 0)), ([0, 1, 0, 1], (0, 1, 0, 1))],
)
def test_padding_as_written(padding: Padding, expected: tuple[int, ...]) -> None:
    assert place((9, 9), 3, 1, padding).padding == expected


def test_rows_and_columns_are_padded_apart() -> None:
    # 7 rows need 6 * 1 + 4 - 7 = 3 zeros at stride 2 (4 windows), 8 columns need 3 * 2 + 4 - 8 = 2.
    assert place((7, 8), 4, 2, "same").padding == (1, 2, 1, 1)


@given(SIDES, WINDOWS, STRIDES)
def test_same_padding_makes_size_over_stride_windows(side: int, window: int, stride: int) -> None:
    assert count(side, window, stride, "same") == math.ceil(side / stride)


@given(SIDES, WINDOWS, STRIDES, st.integers(0, 3))
def test_ceil_is_the_sizing_of_cuda_convnet(side: int, window: int, stride: int, padding: int) -> None:
    # 1 + ceil((in + 2 * pad - filter) / stride), wherever its last window touches the image.
    assume(window <= side + 2 * padding)
    windows = 1 + math.ceil((side + 2 * padding - window) / stride)
    assume((windows - 1) * stride < side + padding)
    assert count(side, window, stride, padding, ceil=True) == windows


@given(SIDES, WINDOWS, STRIDES, st.integers(0, 3))
def test_ceil_sees_every_place_and_starts_no_window_outside(side: int, window: int, stride: int, padding: int) -> None:
    assume(padding < window <= side)
    windows = count(side, window, stride, padding, ceil=True)
    assert (windows - 1) * stride < padding + side
    if stride <= window:
        assert (windows - 1) * stride + window >= padding + side


@pytest.mark.parametrize(("side", "expected"), [(55, 27), (27, 13), (13, 6)])
def test_overlapping_pooling_of_the_imagenet_network(side: int, expected: int) -> None:
    assert count(side, 3, 2, "valid", ceil=True) == expected


def test_first_convolution_of_the_imagenet_network() -> None:
    assert count(224, 11, 4, "valid", ceil=True) == 55
    assert count(224, 11, 4, "valid") == 54


def test_an_image_smaller_than_the_window_may_hold_one_when_rounding_up() -> None:
    assert count(2, 3, 2, "valid", ceil=True) == 1


def test_too_small_names_both_sizes() -> None:
    with pytest.raises(TooSmallError, match="windows of 5x5 need images of at least 3x4, but they are 6x3 here"):
        place((6, 3), 5, 1, (1, 1, 0, 1))


@pytest.mark.parametrize("padding", ["SAME", (1, 2), [1, 2, 3, 4, 5]])
def test_unknown_padding_is_refused(padding: Padding) -> None:
    with pytest.raises(ValueError, match="expected 'valid', 'same', a width or"):
        place((9, 9), 3, 1, padding)
