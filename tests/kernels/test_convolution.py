"""Convolution against loops, and the order of its sums."""

import itertools
from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import Array
from runner.kernels.reference import windows
from runner.kernels.reference.windows import conv2d, conv2d_input_gradient, conv2d_weight_gradient

Ints = tuple[int, ...]

GEOMETRIES: list[dict[str, Any]] = [
    {"strides": (1, 1), "padding": (0, 0, 0, 0), "groups": 1},
    {"strides": (2, 1), "padding": (1, 0, 2, 1), "groups": 1},
    {"strides": (1, 3), "padding": (2, 2, 1, 1), "groups": 2},
    {"strides": (2, 2), "padding": (0, 1, 0, 1), "groups": 4},
]


def by_loops(x: Array, w: Array, strides: Ints, padding: Ints, groups: int) -> Array:
    """The definition: one output at a time."""
    top, bottom, left, right = padding
    image = np.zeros((*x.shape[:2], x.shape[2] + top + bottom, x.shape[3] + left + right))
    image[:, :, top : top + x.shape[2], left : left + x.shape[3]] = x
    outputs, inputs, height, width = w.shape
    rows = (image.shape[2] - height) // strides[0] + 1
    columns = (image.shape[3] - width) // strides[1] + 1
    y = np.zeros((len(x), outputs, rows, columns))
    for n, o, r, c in itertools.product(*map(range, y.shape)):
        first = o // (outputs // groups) * inputs
        row, column = r * strides[0], c * strides[1]
        patch = image[n, first : first + inputs, row : row + height, column : column + width]
        y[n, o, r, c] = np.sum(patch * w[o])
    return y


def _samples(groups: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(groups)
    return rng.standard_normal((3, 4, 7, 6)), rng.standard_normal((8, 4 // groups, 3, 2))


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_convolution_by_loops(geometry: dict[str, Any]) -> None:
    x, w = _samples(geometry["groups"])
    np.testing.assert_allclose(conv2d(x, w, **geometry), by_loops(x, w, **geometry), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_input_gradient_by_loops(geometry: dict[str, Any]) -> None:
    """Each element of dx is the derivative of the weighted output with respect to this element of x."""
    x, w = _samples(geometry["groups"])
    dy = np.random.default_rng(9).standard_normal(by_loops(x, w, **geometry).shape)
    dx = conv2d_input_gradient(dy, w, input_shape=x.shape, **geometry)
    for place in [(0, 0, 0, 0), (2, 3, 6, 5), (1, 2, 3, 4), (2, 1, 6, 0)]:
        unit = np.zeros_like(x)
        unit[place] = 1
        assert dx[place] == pytest.approx(np.vdot(by_loops(unit, w, **geometry), dy), abs=1e-12)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_weight_gradient_by_loops(geometry: dict[str, Any]) -> None:
    x, w = _samples(geometry["groups"])
    dy = np.random.default_rng(9).standard_normal(by_loops(x, w, **geometry).shape)
    dw = conv2d_weight_gradient(dy, x, weight_shape=w.shape, dtype=x.dtype.name, **geometry)
    for place in [(0, 0, 0, 0), (7, w.shape[1] - 1, 2, 1), (3, 0, 1, 1)]:
        unit = np.zeros_like(w)
        unit[place] = 1
        assert dw[place] == pytest.approx(np.vdot(by_loops(x, unit, **geometry), dy), abs=1e-12)


PLAIN: dict[str, Any] = {"strides": (1, 1), "padding": (1, 1, 1, 1), "groups": 1}


def _layer() -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    shapes = [(7, 5, 9, 9), (11, 5, 3, 3), (7, 11, 9, 9)]
    x, w, dy = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return x, w, dy


def test_the_result_of_an_example_does_not_depend_on_the_batch() -> None:
    x, w, dy = _layer()
    for n in range(len(x)):
        one = slice(n, n + 1)
        np.testing.assert_array_equal(conv2d(x[one], w, **PLAIN), conv2d(x, w, **PLAIN)[one])
        alone = conv2d_input_gradient(dy[one], w, input_shape=x[one].shape, **PLAIN)
        np.testing.assert_array_equal(alone, conv2d_input_gradient(dy, w, input_shape=x.shape, **PLAIN)[one])


def test_the_weight_gradient_adds_examples_in_order() -> None:
    x, w, dy = _layer()
    total = np.zeros_like(w)
    for n in range(len(x)):
        one = slice(n, n + 1)
        total += conv2d_weight_gradient(dy[one], x[one], weight_shape=w.shape, dtype=x.dtype.name, **PLAIN)
    whole = conv2d_weight_gradient(dy, x, weight_shape=w.shape, dtype=x.dtype.name, **PLAIN)
    np.testing.assert_array_equal(whole, total)


@pytest.mark.parametrize("run_bytes", [1, 70_000, 1 << 30])
def test_the_length_of_runs_changes_no_bit(monkeypatch: pytest.MonkeyPatch, run_bytes: int) -> None:
    x, w, dy = _layer()

    def results() -> list[bytes]:
        return [
            conv2d(x, w, **PLAIN).tobytes(),
            conv2d_input_gradient(dy, w, input_shape=x.shape, **PLAIN).tobytes(),
            conv2d_weight_gradient(dy, x, weight_shape=w.shape, dtype=x.dtype.name, **PLAIN).tobytes(),
        ]

    usual = results()
    monkeypatch.setattr(windows, "_RUN_BYTES", run_bytes)
    assert results() == usual
