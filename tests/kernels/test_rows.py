"""Activations and cross-entropies compared with SciPy at ordinary and extreme inputs; rows selected by index."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import special

from runner.kernels.contract import Array
from runner.kernels.elementwise import FUNCTIONS
from runner.kernels.reference import rows

ORDINARY = np.random.default_rng(0).standard_normal((4, 5)) * 3
EXTREME = np.array([[-1e4, 0.0, 1e4], [-800.0, -700.0, 700.0], [1e4, 1e4, 1e4]])


@pytest.mark.parametrize("x", [ORDINARY, EXTREME], ids=["ordinary", "extreme"])
def test_softmax_log_softmax_and_sigmoid_equal_scipy(x: Array) -> None:
    np.testing.assert_allclose(rows.softmax(x), special.softmax(x, axis=-1), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(rows.softmax(x).sum(axis=-1), 1.0, rtol=1e-15)
    np.testing.assert_allclose(rows.log_softmax(x), special.log_softmax(x, axis=-1), rtol=1e-12, atol=1e-14)
    for dtype in (np.float32, np.float64):
        expected = special.expit(x.astype(dtype))
        np.testing.assert_allclose(rows.sigmoid(x.astype(dtype)), expected, rtol=1e-6, atol=1e-38)


def test_relu_keeps_nan_and_passes_no_gradient_where_it_is_zero() -> None:
    relu, relu_gradient = (FUNCTIONS[op][1] for op in ("relu", "relu_gradient"))
    assert np.isnan(relu(np.array([np.nan, -1.0]))).tolist() == [True, False]
    dy = np.array([np.nan, np.inf, -np.inf, -1.0, 2.0])
    assert relu_gradient(dy, np.array([0.0, -1.0, 0.0, 0.0, 3.0])).tobytes() == np.array([0, 0, 0, 0, 2.0]).tobytes()


def test_softmax_cross_entropy_equals_scipy() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((6, 4)), rng.integers(0, 4, 6)
    loss, probabilities = rows.softmax_cross_entropy(logits, labels)
    truth = np.eye(4)[labels]
    np.testing.assert_allclose(probabilities, special.softmax(logits, axis=1), rtol=1e-12)
    np.testing.assert_allclose(loss, -special.xlogy(truth, probabilities).sum(axis=1), rtol=1e-12)
    loss, probabilities = rows.softmax_cross_entropy(np.array([[0.0, 2000.0]]), np.array([0]))
    assert (loss.tolist(), probabilities.tolist()) == ([2000.0], [[0.0, 1.0]])


def test_sigmoid_cross_entropy_equals_scipy() -> None:
    rng = np.random.default_rng(1)
    logits, targets = rng.standard_normal((5, 3)), rng.random((5, 3))
    p = special.expit(logits)
    expected = -special.xlogy(targets, p) - special.xlog1py(1 - targets, -p)
    np.testing.assert_allclose(rows.sigmoid_cross_entropy(logits, targets), expected, rtol=1e-12)
    loss = rows.sigmoid_cross_entropy(np.array([1000.0, -1000.0, 1000.0]), np.array([0.0, 1.0, 1.0]))
    assert loss.tolist() == [1000.0, 1000.0, 0.0]


def test_rows_are_gathered_and_added_by_index() -> None:
    params = np.arange(6).reshape(3, 2)
    assert rows.gather(params, np.array([[2, 0], [2, 1]])).tolist() == [[[4, 5], [0, 1]], [[4, 5], [2, 3]]]
    assert rows.one_hot(np.array([2, 0]), depth=3, dtype="float32").tolist() == [[0, 0, 1], [1, 0, 0]]
    # Rows are added in the order of the indices. In float32, 1e8 + 1 is 1e8.
    updates = np.array([1e8, 1.0, -1e8, 1.0, 5.0], np.float32)
    assert rows.scatter_add(np.array([1, 1, 1, 1, 0]), updates, rows=3).tolist() == [5.0, 1.0, 0.0]


@pytest.mark.parametrize("index", [-1, 4])
@pytest.mark.parametrize(
    ("op", "shape", "place", "run"),
    [
        ("gather", (1, 2), "0, 1", lambda indices: rows.gather(np.zeros((4, 2)), indices)),
        ("scatter_add", (1, 2), "0, 1", lambda indices: rows.scatter_add(indices, np.zeros((1, 2)), rows=4)),
        ("one_hot", (1, 2), "0, 1", lambda indices: rows.one_hot(indices, depth=4, dtype="float64")),
        ("softmax_cross_entropy", (2,), "1", lambda labels: rows.softmax_cross_entropy(np.zeros((2, 4)), labels)),
    ],
)
def test_the_error_names_an_index_out_of_range(
    op: str, shape: tuple[int, ...], place: str, run: Callable[[Array], object], index: int
) -> None:
    indices = np.zeros(shape, np.int64)
    indices.flat[-1] = index
    with pytest.raises(IndexError, match=rf"op '{op}': index {index} at \[{place}\] is outside 0..3"):
        run(indices)
