"""Sums over the first axis and over trailing axes in machine code: values, shapes, and the order of additions."""

import numpy as np
import pytest

from runner.kernels.contract import Array, Kernel, plain
from runner.kernels.cpu.machine_code import rows
from runner.kernels.registry import Registry
from tests.engine.compile.passes.exactness import assert_same_bits
from tests.kernels.harness import Shaped, run

CASES = [
    ((), (), ()),
    ((1,), (0,), ()),
    ((7,), (0,), ()),
    ((8,), (0,), ()),
    ((1000,), (0,), ()),
    ((3, 5, 7), (0, 1, 2), ()),
    ((3, 5, 17), (2,), (3, 5)),
    ((3, 5, 17), (1, 2), (3,)),
    ((3, 5), (), (3, 5)),
    ((0,), (0,), ()),
    ((3, 0), (1,), (3,)),
    ((65536,), (0,), ()),
]


def kernel() -> Kernel:
    registry = Registry()
    rows.register(registry)
    return registry.find("reduce_sum", "cpu", "llvm")


def total(x: Array, axes: tuple[int, ...], shape: tuple[int, ...], keepdims: bool = False) -> Array:
    attributes = {"axes": axes, "keepdims": keepdims}
    return run(kernel(), attributes, [Shaped.of(x)], [Shaped(shape, x.dtype.name)], [x]).outputs[0]


@pytest.mark.parametrize(("shape", "axes", "result"), CASES)
def test_sums(shape: tuple[int, ...], axes: tuple[int, ...], result: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).uniform(0.5, 1.5, shape).astype(np.float32)
    np.testing.assert_allclose(total(x, axes, result), x.astype(np.float64).sum(axis=axes), rtol=1e-7)


@pytest.mark.parametrize("shape", [(0, 3), (1, 2), (5, 7), (33, 16), (2, 67), (3, 4, 5), (40, 5000)])
def test_sums_over_the_first_axis_have_the_bits_of_numpy(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-8, 8, shape)).astype(np.float32)
    assert_same_bits(total(x, (0,), shape[1:]), x.sum(axis=0))


def test_zeros_of_rows_below_zero_add_up_to_zero_as_in_numpy() -> None:
    x = np.full((2, 3), -0.0, np.float32)
    assert_same_bits(total(x, (0,), (3,)), x.sum(axis=0))


def test_a_first_axis_may_be_kept() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(total(x, (0,), (1, 4), keepdims=True), [[12, 15, 18, 21]])


def test_kept_axes() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(total(x, (1,), (3, 1), keepdims=True), [[6], [22], [38]])


def test_the_order_is_lanes_then_remaining_elements() -> None:
    # Large numbers cancel, so that the result depends on the order of the additions in float64.
    rng = np.random.default_rng(2)
    large = rng.standard_normal(102) * 10.0 ** rng.integers(0, 20, 102)
    x = rng.permutation([*large, *-large, 1.0]).astype(np.float32)
    lanes = np.zeros(8)
    for vector in x[:200].reshape(25, 8):
        lanes += vector
    expected = 0.0
    for value in (*lanes, *x[200:]):
        expected += value
    assert total(x, (0,), ()) == np.float32(expected)
    assert np.float32(x.sum(dtype=np.float64)) != np.float32(expected)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 9, 18])
def test_nan_and_infinity_reach_the_sum(broken: float, place: int) -> None:
    x = np.zeros(19, np.float32)
    x[place] = broken
    np.testing.assert_array_equal(total(x, (0,), ()), np.float32(broken))


@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [
        ((65537,), (0,), "float32"),
        ((257, 4), (0,), "float32"),
        ((1000, 1), (0,), "float32"),
        ((3, 4, 5), (0, 2), "float32"),
        ((3,), (0,), "int64"),
        ((3,), (0,), "float64"),
    ],
)
def test_other_sums_are_refused(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> None:
    x = Shaped(shape, dtype)
    kept = tuple(extent for axis, extent in enumerate(shape) if axis not in axes)
    assert kernel().arrange({"axes": axes, "keepdims": False}, [x], [Shaped(kept, dtype)], [plain(x)]) is None
