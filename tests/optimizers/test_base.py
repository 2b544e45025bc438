"""Properties of all optimizers: assignments to variables and slots, and clipping by the global norm."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from runner.engine.graph import Graph, ShapeError, ops
from runner.errors import ConfigError
from runner.optimizers import OPTIMIZERS, Adam, Lbfgs, Optimizer, Sgd
from runner.optimizers.base import clip_factor, global_norm, shortened
from tests.optimizers.support import START, Trainer, gradient_steps
from tests.oracles import evaluate

RULES = sorted(set(OPTIMIZERS) - {"lbfgs"})
"""Optimizers that compute an update from a single gradient; L-BFGS needs several."""


@pytest.mark.parametrize("name", RULES)
def test_every_variable_is_assigned_once_in_its_layer(name: str) -> None:
    trainer = Trainer(OPTIMIZERS[name](weight_decay=0.1, clip_norm=1.0))
    assigns = [trainer.graph.nodes[target] for target in trainer.targets]
    assert all(node.op == "assign" for node in assigns)
    assert sorted(node.inputs[0].node for node in assigns) == sorted(v.tensor.node for v in trainer.variables)
    assert all(node.name.startswith("update/fc1/") and node.layer is not None for node in assigns)


def test_lbfgs_has_no_rule_and_no_learning_rate() -> None:
    with pytest.raises(ConfigError, match="optimizer=lbfgs: its step needs more than one gradient"):
        Trainer(Lbfgs())
    expected = r"^optimizer\.lr=0\.5: expected 1\.0; the line search finds the length of a step$"
    with pytest.raises(ConfigError, match=expected):
        Lbfgs(lr=0.5)


def test_without_gradients_no_node_is_added() -> None:
    trainer = Trainer(Adam(clip_norm=1.0))
    size = len(trainer.graph)
    assert trainer.update([]) == []
    assert len(trainer.graph) == size


def test_gradient_with_another_shape_is_refused() -> None:
    trainer = Trainer(Sgd())
    weights, row = trainer.trained[0], trainer.gradients[1]
    assert weights.spec.shape == START["fc1/weights"].shape
    with pytest.raises(ShapeError, match=r"of variable 'fc1/weights' is float64\[3\]; expected float64\[2,3\]"):
        trainer.update([(weights, row)])


@pytest.mark.parametrize(
    ("optimizer", "advice"),
    [
        (Sgd(), "lower optimizer.lr or set optimizer.clip_norm"),
        (Adam(clip_norm=1.0), "lower optimizer.lr or optimizer.clip_norm"),
        (Lbfgs(), "set optimizer.clip_norm, which bounds the first step, or raise optimizer.weight_decay"),
    ],
)
def test_advice_after_divergence_names_settings(optimizer: Optimizer, advice: str) -> None:
    assert optimizer.against_divergence == advice


# Clipping by the global norm.

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


@example(np.zeros(5), np.zeros((2, 3)), 0.5)
@given(arrays(np.float64, 5, elements=VALUES), arrays(np.float64, (2, 3), elements=VALUES), st.floats(1e-3, 1e3))
def test_clipped_tensors_are_scaled_to_the_limit(a: Array, b: Array, limit: float) -> None:
    """One factor scales all tensors to a norm of at most the limit; tensors with a smaller norm keep all bits."""
    norm, after = clipped([a, b], limit)
    assert norm == pytest.approx(float(np.sqrt((a**2).sum() + (b**2).sum())), rel=1e-12)
    factor = min(1.0, limit / norm) if norm > 0 else 1.0
    for before, tensor in zip((a, b), after, strict=True):
        np.testing.assert_allclose(tensor, before * factor, rtol=1e-12, atol=0)
        if norm <= limit:
            assert (tensor == before).all()
    assert np.sqrt(sum((t**2).sum() for t in after)) <= limit * (1 + 1e-12) or norm <= limit


def test_clipping_sends_only_scalars_between_devices() -> None:
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


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_norm_that_is_not_finite_makes_every_tensor_nan(bad: float) -> None:
    tensors = [np.array([1.0, bad], np.float32), np.ones(3, np.float32)]
    norm, after = clipped(tensors, limit=1.0)
    assert not np.isfinite(norm)
    assert all(np.isnan(tensor).all() for tensor in after)


def test_weight_decay_is_not_clipped() -> None:
    (after,) = Trainer(Sgd(clip_norm=1e-9, weight_decay=0.5)).run(gradient_steps(steps=1), [1.0])
    np.testing.assert_allclose(after["fc1/weights"], START["fc1/weights"] / 2, rtol=0, atol=1e-8)
