"""Products that cast their weights themselves: values, bits, and what is left to others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from runner.engine.run.kernel_table import load_kernels
from runner.kernels.contract import Array, Kernel
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.matmul_cast import MOST_ROWS
from runner.kernels.cpu.machine_code.pairs import pay
from tests.kernels.cpu.onednn.checking import assert_close
from tests.kernels.harness import Shaped, run

pytestmark = pytest.mark.skipif(not pay(), reason="the CPU does not multiply pairs of bfloat16, or blocks too")

HALF = np.dtype(ml_dtypes.bfloat16)

SIZES = [(1, 32, 32), (7, 96, 1056), (8, 64, 256), (17, 1024, 64), (33, 544, 288), (MOST_ROWS, 64, 2048)]
"""(rows, extents of W): whole tiles and rests of rows, whole panels and parts of one, long and short stretches."""

FORMS = [(False, False, False), (False, True, False), (False, False, True), (False, True, True), (True, False, False)]
"""transpose_b, bias, relu."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The tests run on every core at once."""
    load_kernels()  # and with them the threads that are limited
    with threadpool_limits(1, user_api="openmp"):
        yield


def kernel() -> Kernel:
    return load_kernels().find("matmul_cast", "cpu", "llvm")


def attributes_of(transpose_b: bool, bias: bool = False, relu: bool = False, dtype: str = "float32") -> dict[str, Any]:
    return {
        "transpose_a": False,
        "transpose_b": transpose_b,
        "bias": bias,
        "relu": relu,
        "cast_to": "bfloat16",
        "dtype": dtype,
    }


def arrays_of(size: tuple[int, int, int], transpose_b: bool, bias: bool = False) -> list[Array]:
    """x or dy, W, then the bias."""
    rows, inner, columns = size
    rng = np.random.default_rng(3)
    x, b = rng.standard_normal((rows, columns if transpose_b else inner)), rng.standard_normal(columns)
    w = rng.standard_normal((inner, columns)).astype(np.float32)
    return [x.astype(HALF), w, *[b.astype(HALF)] * bias]


def computed(attributes: dict[str, Any], arrays: list[Array]) -> Array:
    result = Shaped((arrays[0].shape[0], arrays[1].shape[not attributes["transpose_b"]]), attributes["dtype"])
    return run(kernel(), attributes, list(map(Shaped.of, arrays)), [result], arrays).outputs[0]


def expected(attributes: dict[str, Any], arrays: list[Array]) -> Array:
    """In float64, with weights that are rounded beforehand."""
    x, w, *bias = (array.astype(HALF).astype(np.float64) for array in arrays)
    y: Array = x @ (w.T if attributes["transpose_b"] else w)
    y = y + bias[0] if bias else y
    return np.maximum(y, 0) if attributes["relu"] else y


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2.0**-8)])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", SIZES)
def test_a_product_is_that_with_rounded_weights(
    size: tuple[int, int, int], form: tuple[bool, bool, bool], dtype: str, tolerance: float
) -> None:
    attributes, arrays = attributes_of(*form, dtype), arrays_of(size, *form[:2])
    assert_close(computed(attributes, arrays).astype(np.float64), expected(attributes, arrays), tolerance)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_weights_are_rounded_to_nearest_even(transpose_b: bool) -> None:
    x, w = np.zeros((1, 32), HALF), np.zeros((32, 32), np.float32)
    x[0, 0] = 1.0
    # Halves of the last place of 1: up to the even one, down to the even one, and a little more than half.
    w.flat[0] = 1 + 3 * 2.0**-8
    for place, value in ((1, 1 + 2.0**-8), (2, 1 + 2.0**-8 + 2.0**-20), (3, -3.5)):
        w[(place, 0) if transpose_b else (0, place)] = value
    came = computed(attributes_of(transpose_b), [x, w])
    assert came[0, :4].tolist() == [1 + 2.0**-6, 1.0, 1 + 2.0**-7, -3.5]


@pytest.mark.parametrize("transpose_b", [False, True])
def test_threads_share_the_weights(monkeypatch: pytest.MonkeyPatch, transpose_b: bool) -> None:
    monkeypatch.setattr(threads, "PARALLEL_BYTES", 0)
    attributes, arrays = attributes_of(transpose_b), arrays_of((9, 352, 1056), transpose_b)
    alone = computed(attributes, arrays)
    for number in (2, 3, 7):
        with threadpool_limits(number, user_api="openmp"):
            np.testing.assert_array_equal(computed(attributes, arrays), alone)


def refused(x: Shaped, w: Shaped, **changes: Any) -> bool:
    attributes = {**attributes_of(False), **changes}
    result = Shaped((x.shape[0], w.shape[not attributes["transpose_b"]]), "float32")
    return kernel().arrange(attributes, [x, w], [result], [None] * 2) is None


def test_other_products_are_left_to_others() -> None:
    x, w = Shaped((MOST_ROWS, 64), "bfloat16"), Shaped((64, 64), "float32")
    assert not refused(x, w)
    assert not refused(x, w, transpose_b=True)
    assert refused(x, w, transpose_a=True)
    assert refused(x, w, transpose_b=True, relu=True)
    assert refused(Shaped((MOST_ROWS + 1, 64), "bfloat16"), w)
    assert refused(Shaped((0, 64), "bfloat16"), w)
    assert refused(Shaped((8, 48), "bfloat16"), Shaped((48, 64), "float32"))
    assert refused(x, Shaped((64, 48), "float32"))
    assert refused(Shaped((8, 64), "float32"), w, cast_to="float32")


@pytest.mark.parametrize(("columns", "library"), [(96, "llvm"), (100, "numpy")])
def test_it_is_chosen_where_it_can(columns: int, library: str) -> None:
    x, w, y = Shaped((8, 64), "bfloat16"), Shaped((64, columns), "float32"), Shaped((8, columns), "bfloat16")
    attributes = attributes_of(False, dtype="bfloat16")
    choice = load_kernels().choose("matmul_cast", "cpu", attributes, [x, w], [y], [None] * 2)
    assert choice.kernel.library == library
