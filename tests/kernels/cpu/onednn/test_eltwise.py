"""Functions of one variable: accuracy, layouts, and padded blocks."""

import numpy as np
import pytest

from runner.kernels.contract import Array
from tests.kernels.cpu.onednn.checking import check, floats, kernel, normal
from tests.kernels.harness import Shaped, run

OPS = ["exp", "sigmoid", "tanh"]
ACCURACY = 5e-7
"""Allowed relative deviation from the float64 result."""

LEAST = float(np.exp(-86.6))
"""Results below may be zero instead."""


def _computed(op: str, x: Array) -> Array:
    return run(kernel(op), {}, [Shaped.of(x)], [Shaped.of(x)], [x]).outputs[0]


def _exact(op: str, x: Array) -> Array:
    wide = x.astype(np.float64)
    y: Array = {"exp": np.exp, "sigmoid": lambda v: 1 / (1 + np.exp(-v)), "tanh": np.tanh}[op](wide)
    return y


@pytest.mark.parametrize("op", OPS)
def test_accuracy(op: str) -> None:
    rng = np.random.default_rng(1)
    tiny = rng.choice([-1, 1], 20_000) * np.exp(rng.uniform(-60, 0, 20_000))
    x = np.concatenate([rng.uniform(-86.5, 88, 100_000), rng.uniform(-6, 6, 100_000), tiny]).astype(np.float32)
    np.testing.assert_allclose(_computed(op, x), _exact(op, x), rtol=ACCURACY)


@pytest.mark.parametrize("op", OPS)
def test_large_arguments_give_the_limits(op: str) -> None:
    x = np.array([-np.inf, -3e38, -104, 104, 3e38, np.inf], np.float32)
    with np.errstate(over="ignore"):
        limits = _exact(op, x).astype(np.float32)
    np.testing.assert_allclose(_computed(op, x), limits, rtol=ACCURACY, atol=LEAST)


@pytest.mark.parametrize("op", OPS)
def test_nan_never_becomes_finite(op: str) -> None:
    assert not np.isfinite(_computed(op, np.array([np.nan] * 17, np.float32))).any()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("tag", ["", "acdb", "aBcd16b"])
@pytest.mark.parametrize("op", OPS)
def test_full_blocks_keep_their_layout(op: str, tag: str, in_place: bool) -> None:
    ran = check(op, {}, [normal(1, 2, 32, 5, 3)], [floats(2, 32, 5, 3)], [tag], in_place=in_place)
    assert ran.tags == ([tag], [tag])


@pytest.mark.parametrize(("op", "taken"), [("exp", ""), ("sigmoid", ""), ("tanh", "aBcd16b")])
def test_only_functions_that_keep_zero_take_padded_blocks(op: str, taken: str) -> None:
    ran = check(op, {}, [normal(1, 2, 20, 5, 3)], [floats(2, 20, 5, 3)], ["aBcd16b"])
    assert ran.tags == ([taken], [taken])
