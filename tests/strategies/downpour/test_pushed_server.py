"""A shard's treatment of a push by its staleness; the test launches the clients."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from runner.kernels.registry import Registry
from runner.optimizers import Momentum, Sgd
from runner.strategies.async_data import AsyncData
from runner.strategies.base import Task
from runner.strategies.downpour.pushed_server import Staleness
from tests.strategies.networks import NETWORKS, task_of
from tests.strategies.training import Trainer, Weights, expect_same_bits, opened

RATE = np.float64(0.1)


def task() -> Task:
    return task_of(NETWORKS["batch_normalised"], Momentum(), batch_size=12)


def step(trainer: Trainer, client: str, number: int = 0) -> Mapping[str, Any]:
    """One step of a client from start to end."""
    fed: dict[str, Any] = {}
    if client.startswith("compute"):
        fed = {"step": np.int64(number), "learning_rate": RATE}
    if client.startswith("push"):
        fed = {"learning_rate": RATE}
    trainer.session.launch(client, step=number, feeds=fed)
    return trainer.session.finished().fetches


def pushed(trainer: Trainer, staleness: int) -> tuple[Weights, int, Weights]:
    """Replica 0 fetches and computes; replica 1 pushes ``staleness`` times; replica 0 pushes.

    Returns the variables before and after that push, and its staleness.
    """
    trainer.session.run("init")
    trainer.session.run("begin", feeds={"applied": np.int64(40)})
    step(trainer, "fetch_0_0")
    step(trainer, "compute_0")
    for number in range(staleness):
        step(trainer, "fetch_1_0", number)
        step(trainer, "compute_1", number)
        step(trainer, "push_1_0", number)
    before = trainer.weights()
    told = int(step(trainer, "push_0_0")["staleness"])
    return before, told, trainer.weights()


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_staleness_is_the_number_of_pushes_applied_since_the_fetch(staleness: int, registry: Registry) -> None:
    with opened(AsyncData(), task(), registry) as trainer:
        assert pushed(trainer, staleness)[1] == staleness


def test_of_accumulated_gradients_the_oldest_counts(registry: Registry) -> None:
    with opened(AsyncData(n_push=2), task(), registry) as trainer:
        trainer.session.run("init")
        trainer.session.run("begin", feeds={"applied": np.int64(0)})
        for number in range(2):
            for client in ("fetch_0_0", "compute_0", "fetch_1_0", "compute_1"):
                step(trainer, client, number)
            if number == 0:
                step(trainer, "compute_1", 1)
                step(trainer, "push_1_0", 1)
        assert int(step(trainer, "push_0_0", 1)["staleness"]) == 1
        step(trainer, "fetch_0_0", 2)
        step(trainer, "compute_0", 2)
        assert int(step(trainer, "push_0_0", 2)["staleness"]) == 0


def test_a_fetch_after_the_gradient_does_not_make_it_younger(registry: Registry) -> None:
    with opened(AsyncData(), task(), registry) as trainer:
        trainer.session.run("init")
        trainer.session.run("begin", feeds={"applied": np.int64(0)})
        for client in ("fetch_0_0", "compute_0", "fetch_1_0", "compute_1", "push_1_0", "fetch_0_0"):
            step(trainer, client)
        assert int(step(trainer, "push_0_0")["staleness"]) == 1


def test_staleness_counts_from_the_fetch_of_the_copy(registry: Registry) -> None:
    with opened(AsyncData(), task(), registry) as trainer:
        trainer.session.run("init")
        trainer.session.run("begin", feeds={"applied": np.int64(0)})
        for client in ("fetch_0_0", "fetch_1_0", "compute_1", "push_1_0", "compute_0"):
            step(trainer, client)
        assert int(step(trainer, "push_0_0")["staleness"]) == 1


@pytest.mark.parametrize(("staleness", "kept"), [(2, True), (3, False)])
def test_a_push_beyond_the_limit_changes_nothing_and_is_not_counted(
    staleness: int, kept: bool, registry: Registry
) -> None:
    with opened(AsyncData(staleness=Staleness("drop", 2)), task(), registry) as trainer:
        before, told, after = pushed(trainer, staleness)
        assert told == staleness
        if not kept:
            expect_same_bits(after, before)
        for name, value in after.items():
            assert (value != before[name]).any() == kept, name
        step(trainer, "compute_1", 9)
        applied_since_its_fetch = int(step(trainer, "push_1_0", 9)["staleness"])
        assert applied_since_its_fetch == 1 + kept


@pytest.mark.parametrize(("staleness", "divisor"), [(0, 1), (1, 1), (3, 3)])
def test_the_rate_is_divided_by_the_staleness_where_that_is_above_one(
    staleness: int, divisor: int, registry: Registry
) -> None:
    sgd = task_of(NETWORKS["dense"], Sgd(), batch_size=12)
    moves = []
    for policy in ("none", "scale"):
        # No push before the last one was stale, so that both have the same variables.
        with opened(AsyncData(staleness=Staleness(policy)), sgd, registry) as trainer:
            before, _, after = pushed(trainer, staleness)
            moves.append({name: after[name] - before[name] for name in after})
    plain, scaled = moves
    for name, move in plain.items():
        np.testing.assert_allclose(scaled[name], move / divisor, rtol=0, atol=1e-15)


def test_a_shard_counts_from_its_start_value(registry: Registry) -> None:
    """Momentum does not use the count, so that the test reads it."""
    with opened(AsyncData(), task(), registry) as trainer:
        _, told, _ = pushed(trainer, 2)
        assert told == 2
        trainer.session.run("begin", feeds={"applied": np.int64(90)})
        step(trainer, "compute_0", 1)
        assert int(step(trainer, "push_0_0", 1)["staleness"]) == 90 - 40
