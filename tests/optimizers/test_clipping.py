from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.optimizers import Momentum, Sgd
from runner.optimizers.base import clip_factor, global_norm, shortened
from tests.optimizers.support import RATES, START, Trainer, gradient_steps
from tests.oracles import evaluate

Array = NDArray[Any]
VALUES = st.floats(-1e6, 1e6, allow_subnormal=False)


def clipped(tensors: list[Array], limit: float) -> tuple[float, list[Array]]:
    """Return the global norm and the clipped tensors."""
    graph = Graph()
    fed = [ops.placeholder(graph, t.shape, t.dtype.name) for t in tensors]
    short = shortened(graph, list(enumerate(fed)), clip_factor(graph, fed, limit))
    outputs = [global_norm(graph, fed), *(tensor for _, tensor in short)]
    with np.errstate(invalid="ignore", over="ignore"):
        norm, *rest = evaluate(graph, outputs, dict(zip(fed, tensors, strict=True)))
    return float(norm), rest


def test_norm_of_three_and_four() -> None:
    norm, (a, b) = clipped([np.array([[3.0]]), np.array([0.0, -4.0])], limit=1.0)
    assert norm == 5.0
    np.testing.assert_allclose(a, [[0.6]], rtol=1e-15)
    np.testing.assert_allclose(b, [0.0, -0.8], rtol=1e-15)


@given(arrays(np.float64, 5, elements=VALUES), arrays(np.float64, (2, 3), elements=VALUES), st.floats(1e-3, 1e3))
def test_clipped_tensors_are_scaled_to_the_limit(a: Array, b: Array, limit: float) -> None:
    """Never longer than the limit, never rotated, and equal bit for bit if short enough."""
    norm, after = clipped([a, b], limit)
    factor = min(1.0, limit / norm) if norm > 0 else 1.0
    for before, tensor in zip((a, b), after, strict=True):
        np.testing.assert_allclose(tensor, before * factor, rtol=1e-12, atol=0)
        if norm <= limit:
            assert (tensor == before).all()
    assert np.sqrt(sum((t**2).sum() for t in after)) <= limit * (1 + 1e-12) or norm <= limit


def test_only_scalars_cross_devices() -> None:
    graph = Graph()
    tensors = []
    for task in (1, 2):
        with graph.device(f"/task:{task}"):
            tensors.append(ops.placeholder(graph, (3,), "float64"))
    with graph.device("/task:0"):
        after = shortened(graph, list(enumerate(tensors)), clip_factor(graph, tensors, 1.0))
    assert [graph.nodes[tensor.node].device for _, tensor in after] == ["/task:1", "/task:2"]
    moved = [t for node in graph for t in node.inputs if graph.nodes[t.node].device != node.device]
    assert moved
    assert {graph.spec(tensor).shape for tensor in moved} == {()}


def test_zeros_stay_zeros() -> None:
    norm, (a,) = clipped([np.zeros(3)], limit=0.5)
    assert norm == 0.0
    assert (a == 0.0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_norm_that_is_not_finite_makes_every_tensor_nan(bad: float) -> None:
    tensors = [np.array([1.0, bad], np.float32), np.ones(3, np.float32)]
    norm, after = clipped(tensors, limit=1.0)
    assert not np.isfinite(norm)
    assert all(np.isnan(tensor).all() for tensor in after)


def test_norm_is_over_all_gradients() -> None:
    steps = gradient_steps(steps=1)
    length = float(np.sqrt(sum((g**2).sum() for g in steps[0].values())))
    (after,) = Trainer(Sgd(clip_norm=length / 4)).run(steps, [1.0])
    for name, start in START.items():
        np.testing.assert_allclose(start - after[name], steps[0][name] / 4, rtol=0, atol=1e-12)


def test_weight_decay_is_not_clipped() -> None:
    (after,) = Trainer(Sgd(clip_norm=1e-9, weight_decay=0.5)).run(gradient_steps(steps=1), [1.0])
    np.testing.assert_allclose(after["fc1/weights"], START["fc1/weights"] / 2, rtol=0, atol=1e-8)


def test_a_limit_that_is_not_reached_changes_no_bit() -> None:
    free = Trainer(Momentum()).run(gradient_steps(), RATES)
    bound = Trainer(Momentum(clip_norm=1e6)).run(gradient_steps(), RATES)
    assert all((left[name] == right[name]).all() for left, right in zip(free, bound, strict=True) for name in START)
