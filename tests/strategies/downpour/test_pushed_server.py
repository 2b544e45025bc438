"""Stale pushes to a shard (one parameter server), and the staleness that a replica's own pushes cause.

Most tests launch clients in a chosen order, without a step driver.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from runner.errors import ConfigError
from runner.optimizers import Momentum, Sgd
from runner.strategies import AsyncData, Workload
from runner.strategies.downpour.pushed_server import Staleness
from tests.strategies.networks import workload_of
from tests.strategies.training import Trainer, Weights, begun, expect_same_bits

RATE = np.float64(0.1)


def workload() -> Workload:
    return workload_of("batch_normalised", Momentum(), batch_size=12)


def step(trainer: Trainer, client: str, number: int = 0) -> Mapping[str, Any]:
    """Run one client from start to end and return its fetches."""
    fed: dict[str, Any] = {}
    if client.startswith("compute"):
        fed = {"step": np.int64(number), "learning_rate": RATE}
    if client.startswith("push"):
        fed = {"learning_rate": RATE}
    trainer.session.launch(client, step=number, feeds=fed)
    return trainer.session.finished().fetches


def pushed(trainer: Trainer, staleness: int) -> tuple[Weights, int, Weights]:
    """Let replica 1 push ``staleness`` times between the computation and the push of replica 0.

    Return the variables before the push of replica 0, the staleness of this push, and the variables after this push.
    """
    trainer.session.run("begin", feeds={"applied": np.int64(40)})
    step(trainer, "fetch_0_0")
    step(trainer, "compute_0")
    for number in range(staleness):
        step(trainer, "fetch_1_0", number)
        step(trainer, "compute_1", number)
        step(trainer, "push_1_0", number)
    before = trainer.weights()
    reported = int(step(trainer, "push_0_0")["staleness"])
    return before, reported, trainer.weights()


OLD_AND_NEW = "fetch_0_0 compute_0 fetch_1_0 compute_1 compute_1 push_1_0 fetch_0_0 compute_0"
"""Replica 0 computes one gradient before and one after a push of replica 1."""


@pytest.mark.parametrize(
    ("n_push", "clients", "expected"),
    [
        *((1, "fetch_0_0 compute_0" + n * " fetch_1_0 compute_1 push_1_0", n) for n in (0, 1, 3)),
        # A fetch after the gradient does not lower the staleness of the gradient.
        (1, "fetch_0_0 compute_0 fetch_1_0 compute_1 push_1_0 fetch_0_0", 1),
        # Staleness counts from the fetch, not from the computation.
        (1, "fetch_0_0 fetch_1_0 compute_1 push_1_0 compute_0", 1),
        # A sum of gradients has the staleness of its oldest gradient; after the push, a new sum begins.
        (2, OLD_AND_NEW, 1),
        (2, f"{OLD_AND_NEW} push_0_0 fetch_0_0 compute_0", 0),
    ],
)
def test_staleness_is_the_number_of_pushes_applied_since_the_fetch(n_push: int, clients: str, expected: int) -> None:
    with begun(AsyncData(n_push=n_push), workload()) as trainer:
        trainer.session.run("begin", feeds={"applied": np.int64(0)})
        for number, client in enumerate(clients.split()):
            step(trainer, client, number)
        assert int(step(trainer, "push_0_0")["staleness"]) == expected


@pytest.mark.parametrize(("staleness", "kept"), [(2, True), (3, False)])
def test_a_push_above_the_staleness_limit_changes_nothing_and_is_not_counted(staleness: int, kept: bool) -> None:
    with begun(AsyncData(staleness=Staleness("drop", 2)), workload()) as trainer:
        before, reported, after = pushed(trainer, staleness)
        assert reported == staleness
        if not kept:
            expect_same_bits(after, before)
        for name, value in after.items():
            assert (value != before[name]).any() == kept, name
        step(trainer, "compute_1", 9)
        applied_since_its_fetch = int(step(trainer, "push_1_0", 9)["staleness"])
        assert applied_since_its_fetch == 1 + kept


@pytest.mark.parametrize(("staleness", "divisor"), [(0, 1), (1, 1), (3, 3)])
def test_policy_scale_divides_the_learning_rate_by_a_staleness_above_one(staleness: int, divisor: int) -> None:
    sgd = workload_of("dense", Sgd(), batch_size=12)
    moves = []
    for policy in ("none", "scale"):
        # Only the push of replica 0 can be stale, so both policies give the same variables before this push.
        with begun(AsyncData(staleness=Staleness(policy)), sgd) as trainer:
            before, _, after = pushed(trainer, staleness)
            moves.append({name: after[name] - before[name] for name in after})
    plain, scaled = moves
    for name, move in plain.items():
        np.testing.assert_allclose(scaled[name], move / divisor, rtol=0, atol=1e-15)


def test_a_shard_counts_pushes_from_the_number_at_its_start() -> None:
    """Momentum does not use the count of pushes, so only the staleness depends on the count."""
    with begun(AsyncData(), workload()) as trainer:
        _, reported, _ = pushed(trainer, 2)
        assert reported == 2
        trainer.session.run("begin", feeds={"applied": np.int64(90)})
        step(trainer, "compute_0", 1)
        assert int(step(trainer, "push_0_0", 1)["staleness"]) == 90 - 40


OWN = [
    ("sequential", 1, 1, 0),
    ("sequential", 2, 3, 1),
    ("sequential", 5, 3, 2),
    ("sequential", 4, 2, 1),
    ("overlapped", 3, 1, 3),
    ("overlapped", 2, 3, 1),
    ("direct", 1, 1, 0),
]
"""Tuples (loop, n_fetch, n_push, staleness that a replica's own pushes cause)."""


@pytest.mark.parametrize(("loop", "n_fetch", "n_push", "own"), OWN)
def test_a_limit_below_the_staleness_from_own_pushes_is_refused(loop: str, n_fetch: int, n_push: int, own: int) -> None:
    rhythm: dict[str, Any] = {"loop": loop, "n_fetch": n_fetch, "n_push": n_push}
    AsyncData(**rhythm, staleness=Staleness("drop", own))
    AsyncData(**rhythm, staleness=Staleness("bounded", 0))
    if own:
        expected = (
            rf"^parallelism\.staleness\.limit={own - 1} with policy=drop, loop={loop}, n_fetch={n_fetch} and "
            rf"n_push={n_push}: up to {own} of a replica's own pushes .*; expected {own} or more, or fewer"
        )
        with pytest.raises(ConfigError, match=expected):
            AsyncData(**rhythm, staleness=Staleness("drop", own - 1))


@pytest.mark.parametrize(("loop", "n_fetch", "n_push", "own"), OWN)
def test_a_single_replica_has_the_staleness_of_its_own_pushes(loop: str, n_fetch: int, n_push: int, own: int) -> None:
    strategy = AsyncData(workers=1, loop=loop, n_fetch=n_fetch, n_push=n_push, virtual_time=True)
    with begun(strategy, workload_of("dense", Sgd(weight_decay=1e-3))) as trainer:
        trainer.train(range(20))
        (found,) = trainer.step_driver.record()["staleness"]
    # With loop=overlapped, a push may still be running when the next fetch ends.
    assert own <= max(map(int, found)) <= own + (loop == "overlapped")
