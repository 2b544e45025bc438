"""Worker processes that compute on cards, on a virtual network: their values travel through the memory of the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.engine import worker
from runner.engine.card_use import AS_USUAL, CardUse
from runner.engine.device import Cards
from runner.engine.inputs import InputSource
from runner.engine.kernel_table import load_kernels
from runner.engine.transport.messages import Failed, Run
from runner.errors import ResourceError
from runner.kernels.registry import Registry
from runner.strategies.base import Strategy
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.engine.virtual_cluster import VirtualCluster, virtual_cluster
from tests.gpu.cards import registry_of
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.strategies.networks import Examples
from tests.strategies.test_sync_data import BATCH, task_for
from tests.strategies.training import difference, trained

STEPS = 3
STRATEGIES: Mapping[str, tuple[Strategy, Cards]] = {
    "each_on_its_own_card": (SyncData(workers=2), Cards((0, 1))),
    "both_on_one": (SyncData(workers=2, combine="ring_all_reduce"), Cards((1, 1))),
    "with_a_server_on_the_processor": (SyncData(workers=2, combine="parameter_server", servers=1), Cards((0, 1))),
}


@pytest.fixture
def opened(compiled_sources: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[CardUse, EmulatedRuntime]]:
    """The cards as each process of a worker opens them, with memory of its own, and how they are used."""
    found: list[tuple[CardUse, EmulatedRuntime]] = []

    def load(use: CardUse, home: int) -> Registry:
        found.append((use, EmulatedRuntime(compiled_sources, cards=2)))
        return registry_of(found[-1][1])

    monkeypatch.setattr(worker, "load_card_kernels", load)
    return found


@contextmanager
def begun(
    strategy: Strategy, cards: Cards, folders: tuple[Path, Path], source: InputSource
) -> Iterator[VirtualCluster]:
    """Workers that train the dense network, initialised. folders: of arenas, and of compiled sources."""
    program = strategy.build(task_for("dense"))
    arenas, compiled = folders
    planned_with = registry_of(EmulatedRuntime(compiled, cards=2))
    with virtual_cluster(program, arenas, planned_with, lambda description: source, cards=cards) as cluster:
        cluster.set_up()
        cluster.run("init")
        yield cluster


def feeds(step: int) -> dict[str, NDArray[Any]]:
    """As in :class:`tests.strategies.training.Trainer`."""
    return {"step": np.int64(step), "learning_rate": np.float64(0.1 / (1 + step))}  # type: ignore[dict-item]


@pytest.mark.parametrize("name", STRATEGIES)
def test_workers_on_cards_equal_single(
    name: str, opened: list[tuple[CardUse, EmulatedRuntime]], tmp_path: Path, compiled_sources: Path
) -> None:
    expected, history = trained(Single(), task_for("dense"), load_kernels(), STEPS)
    strategy, cards = STRATEGIES[name]
    with begun(strategy, cards, (tmp_path, compiled_sources), Examples(BATCH)) as cluster:
        losses = [float(cluster.run("train", step, feeds(step))["loss"]) for step in range(STEPS)]
        weights = cluster.run("save")
    assert difference({each: weights[each] for each in expected}, expected) < 1e-12
    np.testing.assert_allclose(losses, [loss for loss, _ in history], rtol=1e-12)
    assert [use for use, _ in opened] == [AS_USUAL, AS_USUAL]
    computed_on = [{card for card, _, _ in runtime._functions} for _, runtime in opened]
    assert sorted(map(sorted, computed_on)) == [[card] for card in cards.of_workers]


class Mislabelled(Examples):
    """Labels that are out of range in step 1."""

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, NDArray[Any]]:
        batch = super().read(split, step, lo, hi)
        return {**batch, "y": batch["y"] + 100 * (step == 1)}


@pytest.mark.usefixtures("opened")
def test_what_a_card_refuses_reaches_the_master(tmp_path: Path, compiled_sources: Path) -> None:
    with begun(SyncData(workers=2), Cards((0, 1)), (tmp_path, compiled_sources), Mislabelled(BATCH)) as cluster:
        plan = cluster.load("train")
        cluster.run("train", 0, feeds(0))
        cluster.feed("train", feeds(1))
        cluster.tell(Run("train", 1, {}), plan.plans)
        failed = cluster.receive().message
        assert isinstance(failed, Failed)
        assert failed.error == "RunnerError"
        assert "device:gpu:0 failed in step 1: IndexError" in failed.text


def test_a_worker_that_finds_no_card_says_what_is_missing(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(use: CardUse, home: int) -> Registry:
        raise ResourceError("a GPU was asked for, but CUDA finds none")

    monkeypatch.setattr(worker, "load_card_kernels", load)
    program = SyncData(workers=2).build(task_for("dense"))
    cards = Cards((0, 0))
    with virtual_cluster(program, tmp_path, registry, lambda description: Examples(BATCH), cards=cards) as cluster:
        cluster.set_up()
        failures = cluster.answers(Failed)
        cluster.wait_for_ends()
    assert set(failures) == set(cluster.workers)
    told = {(each.error, each.text) for each in failures.values()}
    assert told == {("ResourceError", "a GPU was asked for, but CUDA finds none")}
    assert set(cluster.ended.values()) == {ResourceError.exit_code}
