"""Matrix products over transposes, what is fused in, odd sizes, and sizes that are computed in other ways."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from runner.kernels.contract import plain
from runner.kernels.cpu.onednn.linear import FEW_ROWS, LARGE, TURNED_ROWS
from tests.kernels.cpu.onednn.checking import (
    assert_broken_alike,
    check,
    expected,
    floats,
    kernel,
    kernels,
    normal,
    refused,
)
from tests.kernels.harness import Shaped, run

SMALL = [(1, 1, 1), (7, 33, 17), (1, 17, 33), (33, 1, 7), (17, 7, 1), (3, 1000, 10)]
"""(rows, inner extent, columns) with weights below LARGE."""

WIDE = [(1, 400, 1000), (4, 131, 1001), (7, 1000, 133), (33, 257, 517), (300, 131, 1001)]
"""With weights from LARGE on: few rows, rows below, within and above TURNED_ROWS."""

SIZES = [*SMALL, *WIDE]
YES_OR_NO = list(itertools.product((False, True), repeat=2))


def test_the_sizes_are_on_both_sides_of_each_choice() -> None:
    assert all(inner * columns < LARGE for _, inner, columns in SMALL)
    assert all(inner * columns >= LARGE for _, inner, columns in WIDE)
    one, few, below, within, above = (rows for rows, _, _ in WIDE)
    assert one < few == FEW_ROWS < below < TURNED_ROWS.start < within < TURNED_ROWS.stop < above


def _transposes(transpose_a: bool, transpose_b: bool) -> dict[str, bool]:
    return {"transpose_a": transpose_a, "transpose_b": transpose_b}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("turned", YES_OR_NO)
def test_a_product(size: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    m, k, n = size
    a, b = normal(1, *((k, m) if turned[0] else (m, k))), normal(2, *((n, k) if turned[1] else (k, n)))
    ran = check("matmul", _transposes(*turned), [a, b], [floats(m, n)])
    assert ran.tags == (["", ""], [""])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fused", YES_OR_NO)
def test_bias_and_relu(size: tuple[int, int, int], fused: tuple[bool, bool]) -> None:
    m, k, n = size
    attributes = {**_transposes(False, False), "bias": fused[0], "relu": fused[1], "dtype": "float32"}
    arrays = [normal(1, m, k), normal(2, k, n), *[normal(3, n)] * fused[0]]
    check("matmul_fused", attributes, arrays, [floats(m, n)])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [(7, 33, 17), (4, 131, 1001), (300, 131, 1001)])
def test_relu_lets_nan_through(size: tuple[int, int, int], bias: bool) -> None:
    m, k, n = size
    arrays = [normal(1, m, k), normal(2, k, n), *[normal(3, n)] * bias]
    arrays[1][0, -1] = np.nan
    attributes = {**_transposes(False, False), "bias": bias, "relu": True, "dtype": "float32"}
    inputs, outputs = [Shaped.of(array) for array in arrays], [floats(m, n)]
    ran = run(kernel("matmul_fused"), attributes, inputs, outputs, arrays, registry=kernels())
    assert_broken_alike(ran.outputs[0], expected("matmul_fused", attributes, arrays, outputs)[0])


@pytest.mark.parametrize("turned", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("bias", "relu"), [(True, True), (False, True), (True, False)])
def test_bias_and_relu_after_a_product_of_transposes(turned: tuple[bool, bool], bias: bool, relu: bool) -> None:
    m, k, n = 33, 257, 517
    a, b = normal(1, *((k, m) if turned[0] else (m, k))), normal(2, *((n, k) if turned[1] else (k, n)))
    attributes = {**_transposes(*turned), "bias": bias, "relu": relu, "dtype": "float32"}
    check("matmul_fused", attributes, [a, b, *[normal(3, n)] * bias], [floats(m, n)])


@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_weights_and_bias(size: tuple[int, int, int]) -> None:
    m, k, n = size
    check("matmul_bias_gradient", {"dtype": "float32"}, [normal(1, m, k), normal(2, m, n)], [floats(k, n), floats(n)])


@pytest.mark.parametrize("tag", ["t:AB16b32a", "t:ab", "ba"])
@pytest.mark.parametrize("size", [(7, 33, 17), (33, 257, 517)])
def test_weights_that_lie_otherwise_are_asked_for_plain(size: tuple[int, int, int], tag: str) -> None:
    m, k, n = size
    ran = check("matmul", _transposes(False, False), [normal(1, m, k), normal(2, k, n)], [floats(m, n)], ["", tag])
    assert ran.tags == (["", ""], [""])


def test_weights_whose_layout_is_open_become_plain() -> None:
    x, w = normal(1, 8, 400), normal(2, 400, 500)
    specs = [Shaped.of(x), Shaped.of(w)]
    offered = [plain(specs[0]), None]
    ran = run(kernel("matmul"), _transposes(False, False), specs, [floats(8, 500)], [x, w], offered, registry=kernels())
    assert ran.tags == (["", ""], [""])
    np.testing.assert_allclose(ran.outputs[0], x @ w, rtol=1e-4, atol=1e-4)


def test_an_empty_product_is_left_to_others() -> None:
    assert refused("matmul", _transposes(False, False), [floats(0, 3), floats(3, 2)], [floats(0, 2)])
    assert refused("matmul", _transposes(False, False), [floats(2, 0), floats(0, 3)], [floats(2, 3)])
