"""The order of the fetches, steps and pushes of Downpour SGD, tested with fake clients that end in a given order."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest

from runner.engine.run.step_driver import Finished
from runner.strategies.downpour.order import Downpour, Rules


class Stuck(Exception):
    """The error raised if the step driver waits for a client while no client is running."""


@dataclass
class Played:
    """Fake clients, which end in the given order.

    After the last of these ends, clients end in launch order or, if ``strict``, Stuck is raised. noted: names of
    clients with a prefix for each event: run (!), launched (+), reported as ended (-).
    """

    order: list[str] = field(default_factory=list)
    strict: bool = False
    staleness: dict[str, int] = field(default_factory=dict)
    noted: list[str] = field(default_factory=list)
    fed: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    under_way: dict[str, int] = field(default_factory=dict)

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Any]:
        assert not self.under_way
        self.noted.append(f"!{client}")
        self.fed.append((client, feeds or {}))
        return {f"staleness_{shard}": np.int64(0) for shard in range(2)}

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        assert client not in self.under_way
        self.noted.append(f"+{client}")
        self.fed.append((client, feeds or {}))
        self.under_way[client] = step

    def finished(self) -> Finished:
        if self.strict and not self.order:
            raise Stuck
        client = self.order.pop(0) if self.order else next(iter(self.under_way))
        step = self.under_way.pop(client)
        self.noted.append(f"-{client}")
        computed = {"loss": np.float64(step), "accuracy": np.float64(0.5)}
        pushed = {"staleness": np.int64(self.staleness.get(client, 0))}
        return Finished(client, step, computed if client.startswith("compute") else pushed)


RATE = np.asarray(0.1)


def driven(
    rules: Rules, order: str = "", updates: int = 0, strict: bool = False, **staleness: int
) -> tuple[Played, Downpour]:
    """Return the fake clients and a step driver that has made ``updates`` updates."""
    clients = Played(order.split(), strict, staleness)
    step_driver = Downpour(clients, rules)
    for step in range(updates):
        step_driver.update(step, RATE)
    return clients, step_driver


def update_until_stuck(clients: Played, step_driver: Downpour, order: str) -> None:
    clients.order = order.split()
    with suppress(Stuck):
        for step in count():
            step_driver.update(step, RATE)


IN_TURN = "+fetch_0_0 +fetch_0_1 -fetch_0_0 -fetch_0_1 +compute_0 -compute_0 +push_0_0 +push_0_1"


@pytest.mark.parametrize(
    ("rules", "order", "noted"),
    [
        pytest.param(
            Rules(replicas=1, shards=2, overlaps=False), "", f"{IN_TURN} -push_0_0 -push_0_1 {IN_TURN}", id="sequential"
        ),
        pytest.param(
            Rules(replicas=1, shards=1, n_fetch=2),
            "fetch_0_0 compute_0 compute_0",
            "+fetch_0_0 -fetch_0_0 +compute_0 -compute_0 +push_0_0 +compute_0 -compute_0",
            id="overlapped: computes while it pushes and fetches",
        ),
        pytest.param(
            Rules(replicas=1, shards=1, fetches=False, overlaps=False),
            "",
            "+compute_0 -compute_0 +push_0_0 -push_0_0 +compute_0 -compute_0 +push_0_0",
            id="direct: a replica without a copy fetches nothing",
        ),
    ],
)
def test_fetches_steps_and_pushes_have_the_expected_order(rules: Rules, order: str, noted: str) -> None:
    clients, _ = driven(rules, order, updates=2)
    assert " ".join(clients.noted) == f"!begin {noted}"


@pytest.mark.parametrize(
    ("order", "waits_for", "then"),
    [
        ("fetch_0_0 compute_0 fetch_0_0 compute_0", "push_0_0", ["+push_0_0", "+fetch_0_0", "+compute_0"]),
        ("fetch_0_0 compute_0 push_0_0 compute_0 push_0_0", "fetch_0_0", ["+fetch_0_0", "+compute_0"]),
    ],
)
def test_a_due_push_or_fetch_waits_for_the_previous_one(order: str, waits_for: str, then: list[str]) -> None:
    clients, step_driver = driven(Rules(replicas=1, shards=1), strict=True)
    update_until_stuck(clients, step_driver, order)
    assert clients.under_way.keys() == {waits_for}
    update_until_stuck(clients, step_driver, waits_for)
    assert clients.noted[-1 - len(then) :] == [f"-{waits_for}", *then]


@pytest.mark.parametrize(("n_fetch", "n_push"), [(1, 1), (2, 3), (3, 1)])
def test_a_fetch_follows_n_fetch_steps_and_a_push_follows_n_push_steps(n_fetch: int, n_push: int) -> None:
    clients, _ = driven(Rules(replicas=1, shards=1, n_fetch=n_fetch, n_push=n_push, overlaps=False), updates=12)
    assert clients.noted.count("+compute_0") == 12
    assert clients.noted.count("+fetch_0_0") == 12 // n_fetch
    assert clients.noted.count("+push_0_0") == 12 // n_push


def test_an_update_counts_the_steps_of_all_replicas() -> None:
    order = "compute_0 push_0_0 compute_0 push_0_0 compute_0 compute_1"
    _, step_driver = driven(Rules(replicas=2, shards=1, fetches=False, overlaps=False), order)
    assert step_driver.update(0, RATE) == {"loss": 0.5, "accuracy": 0.5}
    assert step_driver.update(1, RATE) == {"loss": 1.0, "accuracy": 0.5}
    assert step_driver.record()["replica_steps"] == [3, 1]


def test_synchronize_pushes_running_steps_and_keeps_their_scores_for_the_next_update() -> None:
    clients, step_driver = driven(Rules(replicas=2, shards=1, fetches=False), "compute_0 compute_1", updates=1)
    step_driver.synchronize()
    assert clients.under_way == {}
    assert clients.noted.count("+compute_0") == clients.noted.count("+push_0_0") == 2
    clients.order = ["compute_1", "push_1_0"]
    before = len(clients.noted)
    assert step_driver.update(1, RATE) == {"loss": 1.0, "accuracy": 0.5}
    assert not any(each.startswith("-") for each in clients.noted[before:])


def test_after_a_checkpoint_all_replicas_fetch_and_continue_with_the_next_batch() -> None:
    order = "fetch_0_0 compute_0 push_0_0 fetch_0_0 compute_0"
    clients, step_driver = driven(Rules(replicas=2, shards=1), order, updates=1)
    step_driver.begin_again()
    before = len(clients.noted)
    step_driver.begin_again()
    assert len(clients.noted) == before
    clients.order = ["fetch_0_0", "fetch_1_0", "compute_1"]
    assert step_driver.update(1, RATE) == {"loss": 1.0, "accuracy": 0.5}
    assert " ".join(clients.noted[before:]).startswith("!begin +fetch_0_0 +fetch_1_0 -fetch_0_0 +compute_0")
    assert step_driver.record()["replica_steps"] == [4, 1]


@pytest.mark.parametrize(("updates", "flushes"), [(2, 0), (3, 1)])
def test_accumulated_gradients_are_applied_before_a_checkpoint(updates: int, flushes: int) -> None:
    clients, step_driver = driven(Rules(replicas=1, shards=2, n_push=2, overlaps=False))
    for step in range(updates):
        step_driver.update(step, np.asarray(0.1 / (1 + step)))
    step_driver.begin_again()
    assert clients.noted.count("+push_0_0") == 1
    assert [fed for client, fed in clients.fed if client == "flush_0"] == [{"learning_rate": 0.1 / updates}] * flushes
    assert step_driver.record()["staleness"] == [{"0": 1 + flushes}] * 2


def test_a_push_uses_the_learning_rate_of_its_update() -> None:
    clients, step_driver = driven(Rules(replicas=1, shards=1, overlaps=False))
    for step, rate in enumerate((0.3, 0.2, 0.1)):
        step_driver.update(step, np.asarray(rate))
    rates = [fed["learning_rate"] for client, fed in clients.fed if client == "push_0_0"]
    assert rates == [0.3, 0.2, 0.1]


def test_only_the_first_replica_makes_the_warm_start() -> None:
    clients, step_driver = driven(Rules(replicas=3, shards=1, warmstart_steps=2), updates=2)
    assert {each for each in clients.noted if "compute" in each} == {"+compute_0", "-compute_0"}
    assert step_driver.record()["replica_steps"] == [6, 0, 0]
    step_driver.update(2, RATE)
    assert {"+fetch_1_0", "+fetch_2_0"} <= set(clients.noted)


def test_a_run_resumed_after_its_warm_start_has_no_warm_start() -> None:
    clients, step_driver = driven(Rules(replicas=3, shards=1, n_push=2, warmstart_steps=2))
    step_driver.update(5, RATE)
    assert ("begin", {"applied": 7}) in clients.fed
    assert {"+fetch_1_0", "+fetch_2_0"} <= set(clients.noted)
    assert next(fed["step"] for client, fed in clients.fed if client.startswith("compute")) == 5


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_no_replica_starts_a_step_while_it_is_too_far_ahead(limit: int) -> None:
    rules = Rules(replicas=2, shards=1, fetches=False, overlaps=False, most_ahead=limit)
    clients, step_driver = driven(rules, strict=True)
    update_until_stuck(clients, step_driver, "compute_0 push_0_0 " * (limit + 1))
    assert clients.under_way.keys() == {"compute_1"}
    assert clients.noted.count("-compute_0") == limit + 1
    update_until_stuck(clients, step_driver, "compute_1")
    assert clients.under_way.keys() == {"compute_0", "push_1_0"}


def test_a_replica_that_starts_after_the_warm_start_is_not_behind() -> None:
    rules = Rules(replicas=2, shards=1, fetches=False, overlaps=False, warmstart_steps=1, most_ahead=0)
    clients, step_driver = driven(rules, strict=True)
    update_until_stuck(clients, step_driver, "compute_0 push_0_0 compute_0 push_0_0")
    assert clients.under_way.keys() == {"compute_0", "compute_1"}


def test_staleness_is_logged_for_each_interval_and_recorded_for_each_shard() -> None:
    _, step_driver = driven(Rules(replicas=1, shards=2, overlaps=False, most_stale=2), push_0_0=4, push_0_1=1)
    assert step_driver.metrics() == {}
    step_driver.update(0, RATE)
    step_driver.synchronize()
    assert step_driver.metrics() == {"comm/staleness_mean": 2.5, "comm/staleness_max": 4.0, "comm/dropped_pushes": 1.0}
    assert step_driver.metrics() == {}
    step_driver.update(1, RATE)
    step_driver.synchronize()
    assert step_driver.record() == {"replica_steps": [2], "staleness": [{"4": 2}, {"1": 2}], "dropped_pushes": [2, 0]}
