"""Softmax and cross-entropy: sizes, extreme logits, dtypes of labels, and labels out of range."""

import numpy as np
import pytest

from runner.kernels.contract import Array, Layout
from tests.kernels.cpu.onednn.checking import check, floats, kernel, kernels, normal, refused
from tests.kernels.harness import Ran, Shaped, run

SHAPES = [(1, 1), (1, 10), (7, 17), (33, 1000)]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 7), (2, 3, 4, 5)])
def test_softmax(shape: tuple[int, ...], in_place: bool) -> None:
    check("softmax", {}, [4 * normal(1, *shape)], [floats(*shape)], in_place=in_place, tolerance=1e-6)


def test_softmax_of_large_logits() -> None:
    check("softmax", {}, [np.array([[0, 2000, 1999], [-1e30, 3e38, 0]], np.float32)], [floats(2, 3)])


def _cross_entropy(logits: Array, labels: Array, tolerance: float = 1e-6) -> Ran:
    rows, classes = logits.shape
    outputs = [floats(rows), floats(rows, classes)]
    return check("softmax_cross_entropy", {}, [logits, labels], outputs, tolerance=tolerance)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_cross_entropy(shape: tuple[int, int], dtype: str) -> None:
    labels = np.random.default_rng(2).integers(0, min(shape[1], 256), shape[0]).astype(dtype)
    # The tolerance is relative to the largest loss.
    _cross_entropy(4 * normal(1, *shape), labels)


def test_the_last_and_the_first_class() -> None:
    _cross_entropy(normal(1, 2, 5), np.array([4, 0]))


def test_extreme_logits_have_exact_losses() -> None:
    logits = np.array([[0, 2000, 1999], [0, 2000, 0], [-3e38, 0, 0], [1e30, 1e30, 0]], np.float32)
    ran = _cross_entropy(logits, np.array([0, 1, 1, 0]))
    assert ran.outputs[0][1] == 0


def test_the_loss_of_a_certain_prediction_is_small_but_not_zero() -> None:
    logits = np.array([[0, 8], [0, 12]], np.float32)
    ran = _cross_entropy(logits, np.array([1, 1]), tolerance=1e-3)
    # Probabilities near 1 are rounded to multiples of 6e-8, and so are these losses.
    np.testing.assert_allclose(ran.outputs[0], np.log1p(np.exp([-8.0, -12.0])), rtol=0, atol=1.2e-7)


def _alone(logits: Array, labels: Array) -> Ran:
    """Run the kernel without a comparison."""
    outputs = [floats(len(labels)), floats(*logits.shape)]
    inputs = [Shaped.of(logits), Shaped.of(labels)]
    return run(kernel("softmax_cross_entropy"), {}, inputs, outputs, [logits, labels])


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("label", [0, 1])
def test_a_broken_logit_gives_a_nan_loss(broken: float, label: int) -> None:
    with np.errstate(all="ignore"):
        ran = _alone(np.array([[broken, 0, 1]], np.float32), np.array([label]))
    assert np.isnan(ran.outputs[0]).all()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("label", [-1, 3, 2**31 - 1])
def test_a_label_out_of_range_is_named(label: int, dtype: str) -> None:
    with pytest.raises(IndexError, match=rf"op 'softmax_cross_entropy': index {label} at \[1\] is outside 0\.\.2"):
        _alone(normal(1, 3, 3), np.array([0, label, 1], dtype))


def test_logits_in_another_layout_are_asked_for_plain() -> None:
    logits = normal(1, 4, 10)
    offered = [Layout("ba", logits.nbytes)]
    ran = run(kernel("softmax"), {}, [floats(4, 10)], [floats(4, 10)], [logits], offered, registry=kernels())
    assert ran.tags == ([""], [""])
    np.testing.assert_allclose(ran.outputs[0].sum(axis=1), 1, rtol=1e-6)


def test_no_rows_are_refused() -> None:
    labels = Shaped((0,), "int64")
    assert refused("softmax_cross_entropy", {}, [floats(0, 3), labels], [floats(0), floats(0, 3)])
    assert refused("softmax", {}, [floats(0, 3)], [floats(0, 3)])
