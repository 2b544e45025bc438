"""Pooling against loops; padding, ties and NaN."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from runner.kernels.contract import Array
from runner.kernels.reference.windows import avg_pool, max_pool, max_pool_gather, max_pool_gradient

Ints = tuple[int, ...]

GEOMETRIES: list[dict[str, Ints]] = [
    {"window": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0)},
    {"window": (3, 3), "strides": (2, 2), "padding": (0, 1, 0, 1)},
    {"window": (3, 2), "strides": (1, 2), "padding": (2, 1, 1, 0)},
]
Window = tuple[tuple[int, ...], list[tuple[int, tuple[int, int]]]]


def windows(x: Array, window: Ints, strides: Ints, padding: Ints) -> Iterator[Window]:
    """Yield for every output its place, and (position in the window, place in the image) of its inputs."""
    top, bottom, left, right = padding
    rows = (x.shape[2] + top + bottom - window[0]) // strides[0] + 1
    columns = (x.shape[3] + left + right - window[1]) // strides[1] + 1
    for n, c, r, q in itertools.product(*map(range, (*x.shape[:2], rows, columns))):
        cells = enumerate(itertools.product(range(window[0]), range(window[1])))
        places = [(p, (r * strides[0] + u - top, q * strides[1] + v - left)) for p, (u, v) in cells]
        inside = [(p, (i, j)) for p, (i, j) in places if 0 <= i < x.shape[2] and 0 <= j < x.shape[3]]
        yield (n, c, r, q), inside


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_maximum_of_each_window_and_its_position(geometry: dict[str, Ints]) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 7, 6)) - 3  # negative, so that padding would win as zero
    y, argmax = max_pool(x, **geometry)
    for place, inside in windows(x, **geometry):
        position, best = max(inside, key=lambda cell: x[place[0], place[1], *cell[1]])
        assert y[place] == x[place[0], place[1], *best]
        assert argmax[place] == position
    assert argmax.dtype == np.int32


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("count_padding", [False, True])
def test_the_mean_of_each_window(geometry: dict[str, Ints], count_padding: bool) -> None:
    x = np.random.default_rng(2).standard_normal((2, 3, 7, 6))
    y = avg_pool(x, count_padding=count_padding, **geometry)
    for place, inside in windows(x, **geometry):
        values = [x[place[0], place[1], *cell] for _, cell in inside]
        divisor = np.prod(geometry["window"]) if count_padding else len(values)
        assert y[place] == pytest.approx(sum(values) / divisor, rel=1e-12)


def test_the_first_of_equal_values_wins() -> None:
    _, argmax = max_pool(np.ones((1, 1, 4, 4)), window=(2, 2), strides=(2, 2), padding=(0, 0, 0, 0))
    assert not argmax.any()


def test_the_first_of_equal_values_in_the_image_wins_over_padding() -> None:
    geometry = {"window": (2, 2), "strides": (2, 2), "padding": (1, 1, 1, 1)}
    _, argmax = max_pool(np.zeros((1, 1, 2, 2)), **geometry)
    assert argmax.ravel().tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("position", range(4))
def test_a_maximum_over_nan_is_nan(position: int) -> None:
    x = np.zeros((1, 1, 2, 2), np.float32)
    x.ravel()[position] = np.nan
    y, _ = max_pool(x, window=(2, 2), strides=(2, 2), padding=(0, 0, 0, 0))
    assert np.isnan(y).all()


def test_an_infinite_gradient_goes_to_the_maximum_alone() -> None:
    x = np.arange(4.0).reshape(1, 1, 2, 2)
    geometry = {"window": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0)}
    y, argmax = max_pool(x, **geometry)
    dx = max_pool_gradient(np.full_like(y, np.inf), argmax, input_shape=x.shape, **geometry)
    assert dx.tolist() == [[[[0.0, 0.0], [0.0, np.inf]]]]


def test_overlapping_windows_add_their_gradients_at_one_maximum() -> None:
    geometry = {"window": (3, 3), "strides": (1, 1), "padding": (0, 0, 0, 0)}
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 1, 2] = 1
    y, argmax = max_pool(x, **geometry)
    dx = max_pool_gradient(np.ones_like(y), argmax, input_shape=x.shape, **geometry)
    np.testing.assert_array_equal(dx, 4 * x)
    np.testing.assert_array_equal(max_pool_gather(x, argmax, **geometry), y)
