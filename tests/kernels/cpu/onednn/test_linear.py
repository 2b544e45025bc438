"""Matrix products: layouts of weights, NaN before a ReLU, and refusals; the table compares the other values."""

import numpy as np
import pytest

from runner.kernels.contract import plain
from runner.kernels.cpu.onednn.linear import FEW_ROWS, LARGE, TURNED_ROWS
from tests.kernels.cpu.layout_cases import PRODUCTS
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


def test_the_sizes_of_the_table_are_on_both_sides_of_each_choice() -> None:
    small = [size for size in PRODUCTS if size[1] * size[2] < LARGE]
    wide = [size for size in PRODUCTS if size not in small]
    assert small
    one, few, below, within, above = (rows for rows, _, _ in wide)
    assert one < few == FEW_ROWS < below < TURNED_ROWS.start < within < TURNED_ROWS.stop < above


def _transposes(transpose_a: bool, transpose_b: bool) -> dict[str, bool]:
    return {"transpose_a": transpose_a, "transpose_b": transpose_b}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [(7, 33, 17), (4, 131, 1001), (300, 131, 1001)])
def test_nan_passes_the_relu(size: tuple[int, int, int], bias: bool) -> None:
    m, k, n = size
    arrays = [normal(1, m, k), normal(2, k, n), *[normal(3, n)] * bias]
    arrays[1][0, -1] = np.nan
    attributes = {**_transposes(False, False), "bias": bias, "relu": True, "dtype": "float32"}
    inputs, outputs = [Shaped.of(array) for array in arrays], [floats(m, n)]
    ran = run(kernel("matmul_fused"), attributes, inputs, outputs, arrays, registry=kernels())
    assert_broken_alike(ran.outputs[0], expected("matmul_fused", attributes, arrays, outputs)[0])


@pytest.mark.parametrize("tag", ["t:AB16b32a", "t:ab", "ba"])
@pytest.mark.parametrize("size", [(7, 33, 17), (33, 257, 517)])
def test_weights_in_another_layout_become_plain(size: tuple[int, int, int], tag: str) -> None:
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


def test_an_empty_product_is_refused() -> None:
    assert refused("matmul", _transposes(False, False), [floats(0, 3), floats(3, 2)], [floats(0, 2)])
    assert refused("matmul", _transposes(False, False), [floats(2, 0), floats(0, 3)], [floats(2, 3)])
