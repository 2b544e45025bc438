import pytest

from runner.engine.graph import ops
from runner.engine.graph.op import ShapeError
from runner.errors import ConfigError
from runner.optimizers import OPTIMIZERS, Adam, Lbfgs, Sgd
from runner.optimizers.base import Optimizer
from tests.optimizers.support import START, Trainer

RULES = sorted(set(OPTIMIZERS) - {"lbfgs"})
"""Optimizers whose update is determined by one gradient."""


@pytest.mark.parametrize("name", RULES)
def test_every_state_is_assigned_once_in_its_layer(name: str) -> None:
    trainer = Trainer(OPTIMIZERS[name](weight_decay=0.1, clip_norm=1.0))
    assigns = [trainer.graph.nodes[target] for target in trainer.targets]
    assert all(node.op == "assign" for node in assigns)
    assert sorted(node.inputs[0].node for node in assigns) == sorted(v.tensor.node for v in trainer.variables)
    assert all(node.name.startswith("update/fc1/") and node.layer is not None for node in assigns)


@pytest.mark.parametrize("name", RULES)
def test_gradient_may_be_any_tensor_of_the_graph(name: str) -> None:
    trainer = Trainer(OPTIMIZERS[name]())
    graph = trainer.graph
    summed = [ops.add_n(graph, [g, v.tensor]) for g, v in zip(trainer.gradients, trainer.trained, strict=True)]
    targets = trainer.update(list(zip(trainer.trained, summed, strict=True)))
    assert len(targets) == len(trainer.targets)
    assert set(targets).isdisjoint(trainer.targets)


def test_lbfgs_has_no_rule() -> None:
    with pytest.raises(ConfigError, match="optimizer=lbfgs: its step needs more than one gradient"):
        Trainer(Lbfgs())


def test_lbfgs_takes_no_learning_rate() -> None:
    expected = r"^optimizer\.lr=0\.5: expected 1\.0; the line search finds the length of a step$"
    with pytest.raises(ConfigError, match=expected):
        Lbfgs(lr=0.5)


def test_no_gradients_add_no_nodes() -> None:
    trainer = Trainer(Adam(clip_norm=1.0))
    size = len(trainer.graph)
    assert trainer.update([]) == []
    assert len(trainer.graph) == size


def test_gradient_of_another_shape_is_refused() -> None:
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
def test_advice_against_divergence_names_settings(optimizer: Optimizer, advice: str) -> None:
    assert optimizer.against_divergence == advice
