from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from omegaconf import OmegaConf

from runner.engine import ops
from runner.engine.op import ShapeError
from runner.errors import ConfigError
from runner.optimizers import OPTIMIZERS, Adam, Lbfgs, Sgd
from runner.optimizers.base import Optimizer
from tests.optimizers.support import START, Trainer

RULES = sorted(set(OPTIMIZERS) - {"lbfgs"})
"""Optimizers whose update follows from a gradient."""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_a_schema(name: str) -> None:
    schema = OPTIMIZERS[name]
    assert [field.name for field in dataclasses.fields(schema)][:4] == [
        "name",
        "lr",
        "weight_decay",
        "clip_norm",
    ]
    assert schema().name == name
    assert OmegaConf.to_object(OmegaConf.structured(schema)) == schema()


@pytest.mark.parametrize("name", RULES)
def test_every_state_is_assigned_once_beside_its_variable(name: str) -> None:
    trainer = Trainer(OPTIMIZERS[name](weight_decay=0.1, clip_norm=1.0))
    assigns = [trainer.graph.nodes[target] for target in trainer.targets]
    assert all(node.op == "assign" for node in assigns)
    assert sorted(node.inputs[0].node for node in assigns) == sorted(v.tensor.node for v in trainer.variables)
    assert all(node.name.startswith("update/fc1/") and node.layer is not None for node in assigns)


@pytest.mark.parametrize("name", RULES)
def test_gradient_may_be_any_tensor_of_the_graph(name: str) -> None:
    """As strategies hand in sums from other devices, or the variable itself."""
    trainer = Trainer(OPTIMIZERS[name]())
    graph = trainer.graph
    summed = [ops.add_n(graph, [g, v.tensor]) for g, v in zip(trainer.gradients, trainer.trained, strict=True)]
    targets = trainer.update(list(zip(trainer.trained, summed, strict=True)))
    assert len(targets) == len(trainer.targets)
    assert set(targets).isdisjoint(trainer.targets)


def test_lbfgs_has_no_rule() -> None:
    with pytest.raises(ConfigError, match="optimizer=lbfgs: no gradient alone says where its step ends"):
        Trainer(Lbfgs())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.5}, r"optimizer\.lr=0\.5: expected 1\.0; the line search finds the length of a step"),
        ({"history": 0}, r"optimizer\.history=0: expected 1 pair or more"),
        ({"max_evaluations": 0}, r"optimizer\.max_evaluations=0: expected 1 or more"),
    ],
)
def test_impossible_settings_of_lbfgs(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        Lbfgs(**settings)


def test_no_gradients_no_update() -> None:
    trainer = Trainer(Adam(clip_norm=1.0))
    size = len(trainer.graph)
    assert trainer.update([]) == []
    assert len(trainer.graph) == size


def test_a_gradient_that_would_only_broadcast() -> None:
    trainer = Trainer(Sgd())
    weights, row = trainer.trained[0], trainer.gradients[1]
    assert weights.spec.shape == START["fc1/weights"].shape
    with pytest.raises(ShapeError, match=r"of variable 'fc1/weights' is float64\[3\]; expected float64\[2,3\]"):
        trainer.update([(weights, row)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "optimizer.lr=0.0: expected a finite number above 0"),
        ({"lr": math.inf}, "optimizer.lr=inf: expected a finite number above 0"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay=-0.1: expected a finite number, 0 or more"),
        ({"clip_norm": 0.0}, "optimizer.clip_norm=0.0: expected null (off) or a finite number above 0"),
    ],
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_impossible_settings(name: str, settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OPTIMIZERS[name](**settings)  # type: ignore[arg-type]
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("optimizer", "advice"),
    [
        (Sgd(), "lower optimizer.lr or set optimizer.clip_norm"),
        (Adam(clip_norm=1.0), "lower optimizer.lr or optimizer.clip_norm"),
        (Lbfgs(), "set optimizer.clip_norm, which bounds the first step, or raise optimizer.weight_decay"),
    ],
)
def test_what_to_do_against_divergence_is_a_setting_that_can_be_changed(optimizer: Optimizer, advice: str) -> None:
    assert optimizer.against_divergence == advice
