"""Convolution and pooling: comparison with loops, the order of sums, ties, and NaN.

``tests/engine/graph/ops/test_laws.py`` compares gradients with finite differences.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import Array
from runner.kernels.reference import windows

Ints = tuple[int, ...]
Window = tuple[Ints, list[tuple[int, tuple[int, int]]]]


def visited(shape: Ints, window: Ints, strides: Ints, padding: Ints, dilations: Ints = (1, 1)) -> Iterator[Window]:
    """Yield each output (n, row, column) with its inputs as (position in the window, (row, column) of the image)."""
    top, bottom, left, right = padding
    rows = (shape[2] + top + bottom - dilations[0] * (window[0] - 1) - 1) // strides[0] + 1
    columns = (shape[3] + left + right - dilations[1] * (window[1] - 1) - 1) // strides[1] + 1
    for n, r, q in itertools.product(range(shape[0]), range(rows), range(columns)):
        cells = enumerate(itertools.product(range(window[0]), range(window[1])))
        i, j = r * strides[0] - top, q * strides[1] - left  # the first pixel of the window
        places = [(p, (i + u * dilations[0], j + v * dilations[1])) for p, (u, v) in cells]
        yield (n, r, q), [(p, (i, j)) for p, (i, j) in places if 0 <= i < shape[2] and 0 <= j < shape[3]]


@pytest.mark.parametrize(
    ("strides", "padding", "dilations", "groups"),
    [
        ((1, 1), (0, 0, 0, 0), (1, 1), 1),
        ((2, 1), (1, 0, 2, 1), (1, 1), 1),
        ((1, 3), (2, 2, 1, 1), (1, 1), 2),
        ((2, 2), (0, 1, 0, 1), (1, 1), 4),
        ((1, 2), (1, 0, 0, 2), (3, 4), 2),
    ],
)
def test_convolution_equals_loops(strides: Ints, padding: Ints, dilations: Ints, groups: int) -> None:
    rng = np.random.default_rng(groups)
    x, w = rng.standard_normal((3, 4, 7, 6)), rng.standard_normal((8, 4 // groups, 3, 2))
    y = windows.conv2d(x, w, strides=strides, padding=padding, dilations=dilations, groups=groups)
    inputs = w.shape[1]
    for (n, row, column), inside in visited(x.shape, w.shape[2:], strides, padding, dilations):
        for o in range(len(w)):
            first = o // (len(w) // groups) * inputs
            terms = [x[n, first : first + inputs, i, j] @ w[o].reshape(inputs, -1)[:, p] for p, (i, j) in inside]
            assert y[n, o, row, column] == pytest.approx(sum(terms), rel=1e-12, abs=1e-12)


PLAIN: dict[str, Any] = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}


def _layer() -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    shapes = [(7, 5, 9, 9), (11, 5, 3, 3), (7, 11, 9, 9)]
    x, w, dy = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return x, w, dy


def test_the_result_of_an_example_does_not_depend_on_the_batch() -> None:
    x, w, dy = _layer()
    for n in range(len(x)):
        one = slice(n, n + 1)
        np.testing.assert_array_equal(windows.conv2d(x[one], w, **PLAIN), windows.conv2d(x, w, **PLAIN)[one])
        alone = windows.conv2d_input_gradient(dy[one], w, input_shape=x[one].shape, **PLAIN)
        np.testing.assert_array_equal(alone, windows.conv2d_input_gradient(dy, w, input_shape=x.shape, **PLAIN)[one])


def test_the_weight_gradient_adds_examples_in_order() -> None:
    x, w, dy = _layer()
    attributes = {**PLAIN, "weight_shape": w.shape, "dtype": "float32"}
    total = np.zeros_like(w)
    for n in range(len(x)):
        total += windows.conv2d_weight_gradient(dy[n : n + 1], x[n : n + 1], **attributes)
    np.testing.assert_array_equal(windows.conv2d_weight_gradient(dy, x, **attributes), total)


@pytest.mark.parametrize("run_bytes", [1, 70_000, 1 << 30])
def test_the_size_of_runs_of_examples_changes_no_bit(monkeypatch: pytest.MonkeyPatch, run_bytes: int) -> None:
    x, w, dy = _layer()

    def results() -> list[bytes]:
        return [
            windows.conv2d(x, w, **PLAIN).tobytes(),
            windows.conv2d_input_gradient(dy, w, input_shape=x.shape, **PLAIN).tobytes(),
            windows.conv2d_weight_gradient(dy, x, weight_shape=w.shape, dtype="float32", **PLAIN).tobytes(),
        ]

    usual = results()
    monkeypatch.setattr(windows, "_RUN_BYTES", run_bytes)
    assert results() == usual


@pytest.mark.parametrize(
    "geometry",
    [
        {"window": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0)},
        {"window": (3, 3), "strides": (2, 2), "padding": (0, 1, 0, 1)},
        {"window": (3, 2), "strides": (1, 2), "padding": (2, 1, 1, 0)},
    ],
)
def test_pooling_gives_the_maximum_and_the_mean_of_each_window(geometry: dict[str, Ints]) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 7, 6)) - 3  # negative, to notice zeros in the padding
    y, argmax = windows.max_pool(x, **geometry)
    means, inner_means = (windows.avg_pool(x, count_padding=counted, **geometry) for counted in (True, False))
    for (n, row, column), inside in visited(x.shape, **geometry):
        for c in range(3):
            place, values = (n, c, row, column), {position: x[n, c, *cell] for position, cell in inside}
            assert (argmax[place], y[place]) == max(values.items(), key=lambda item: item[1])
            total = sum(values.values())
            assert means[place] == pytest.approx(total / np.prod(geometry["window"]), rel=1e-12)
            assert inner_means[place] == pytest.approx(total / len(values), rel=1e-12)
    assert argmax.dtype == np.int32


HALVES = {"window": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0)}


def test_the_first_of_equal_values_is_the_maximum_and_padding_never_is() -> None:
    assert not windows.max_pool(np.ones((1, 1, 4, 4)), **HALVES)[1].any()
    _, argmax = windows.max_pool(np.zeros((1, 1, 2, 2)), **{**HALVES, "padding": (1, 1, 1, 1)})
    assert argmax.ravel().tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("position", range(4))
def test_a_maximum_over_nan_is_nan(position: int) -> None:
    x = np.zeros((1, 1, 2, 2), np.float32)
    x.ravel()[position] = np.nan
    assert np.isnan(windows.max_pool(x, **HALVES)[0]).all()


def test_only_the_maximum_receives_an_infinite_gradient() -> None:
    x = np.arange(4.0).reshape(1, 1, 2, 2)
    y, argmax = windows.max_pool(x, **HALVES)
    dx = windows.max_pool_gradient(np.full_like(y, np.inf), argmax, input_shape=x.shape, **HALVES)
    assert dx.tolist() == [[[[0.0, 0.0], [0.0, np.inf]]]]


def test_overlapping_windows_add_their_gradients_at_a_shared_maximum() -> None:
    geometry = {"window": (3, 3), "strides": (1, 1), "padding": (0, 0, 0, 0)}
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 1, 2] = 1
    y, argmax = windows.max_pool(x, **geometry)
    dx = windows.max_pool_gradient(np.ones_like(y), argmax, input_shape=x.shape, **geometry)
    np.testing.assert_array_equal(dx, 4 * x)
    np.testing.assert_array_equal(windows.max_pool_gather(x, argmax, **geometry), y)
