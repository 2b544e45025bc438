"""Whole networks: the losses of the first ten steps are those of processors, within what float32 allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from runner.engine.kernel_table import load_kernels
from runner.models.alexnet import AlexNet
from runner.models.base import Model
from runner.models.lenet import LeNet
from runner.models.resnet_cifar import ResNetCifar
from runner.optimizers.momentum import Momentum
from runner.strategies.base import Task
from runner.strategies.single import Single
from tests.gpu.cards import Card
from tests.strategies.networks import CLASSES, TEST_BATCH
from tests.strategies.training import trained

STEPS = 10

NETWORKS: Mapping[str, tuple[Model, tuple[int, int, int], int]] = {
    "lenet": (LeNet(), (1, 28, 28), 16),
    "resnet20": (ResNetCifar(depth=20), (3, 32, 32), 16),
    "alexnet": (AlexNet(dropout=0.5), (3, 224, 224), 4),
}
"""Model, images and batch."""

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1}
"""Relative; the first loss, before any update, is held to a hundredth of it in float32."""


def task_for(name: str, dtype: str) -> Task:
    model, shape, batch = NETWORKS[name]
    rate = 1e-3 if name == "alexnet" else 1e-2
    return Task(model.network(CLASSES), Momentum(lr=rate, clip_norm=1.0), shape, dtype, 7, batch, TEST_BATCH)


def losses(name: str, dtype: str, registry: Any, *, cards: bool) -> np.ndarray:
    _, history = trained(Single(), task_for(name, dtype), registry, STEPS, cards=cards)
    return np.array([loss for loss, _ in history])


@pytest.mark.card_only
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_losses_are_those_of_processors(card: Card, name: str) -> None:
    expected = losses(name, "float32", load_kernels(), cards=False)
    found = losses(name, "float32", card.registry(), cards=True)
    np.testing.assert_allclose(found, expected, rtol=TOLERANCES["float32"])
    np.testing.assert_allclose(found[0], expected[0], rtol=TOLERANCES["float32"] / 100)
    assert abs(expected[-1] - expected[0]) > 10 * TOLERANCES["float32"] * expected[0], "the losses hardly move"


@pytest.mark.card_only
@pytest.mark.parametrize("name", ["lenet", "resnet20"])
def test_tf32_and_bfloat16_stay_near(card: Card, name: str) -> None:
    exact = losses(name, "float32", card.registry(), cards=True)
    rounded = losses(name, "float32", card.registry(tf32=True), cards=True)
    narrow = losses(name, "bfloat16", card.registry(), cards=True)
    np.testing.assert_allclose(rounded, exact, rtol=0.02)
    np.testing.assert_allclose(narrow, exact, rtol=TOLERANCES["bfloat16"])
