"""Remote plans: feeds and fetches through shared memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engine.cluster.assignment import feed_key, fetch_key
from runner.engine.cluster.remote_plan import RemotePlan
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaWriter
from runner.engine.compile.program import Client, Program
from runner.engine.graph.tensor import Tensor
from runner.errors import RunnerError
from runner.kernels.registry import Registry
from tests.engine.cluster.remote_programs import EPOCH, EXAMPLES, plans_of, remote_plan, there_and_back

RATE, OLD, AWAY = Tensor("rate"), Tensor("w"), Tensor("away")


@pytest.fixture
def plan(tmp_path: Path, registry: Registry) -> RemotePlan:
    return remote_plan(plans_of(there_and_back(), registry), "run", tmp_path, name="run-0")


def test_only_workers_with_nodes_participate(tmp_path: Path, registry: Registry, plan: RemotePlan) -> None:
    init = remote_plan(plans_of(there_and_back(), registry), "init", tmp_path)
    assert (set(init.plans), set(init.assignments)) == ({"worker-0"}, {"worker-0"})
    assert (set(plan.plans), set(plan.assignments)) == ({"worker-0", "worker-1"}, {"worker-0", "worker-1"})
    nothing = Program(there_and_back().graph, {"nothing": Client("nothing")}, {}, workers=2)
    assert remote_plan(plans_of(nothing, registry), "nothing", tmp_path).assignments == {}


def test_all_workers_get_the_same_arenas_of_this_epoch(plan: RemotePlan) -> None:
    first, second = (plan.assignments[worker].arenas for worker in ("worker-0", "worker-1"))
    assert first == second
    assert {owner: arena.name for owner, arena in first.items()} == {
        owner: f"run-0 {owner}" for owner in ("master-0", "worker-0", "worker-1")
    }
    assert {arena.epoch for arena in first.values()} == {EPOCH}


def test_worker_reads_its_feeds(plan: RemotePlan) -> None:
    plan.feed({RATE: np.float64(0.25), Tensor("unused"): "whatever"})
    arena = ArenaReader(plan.assignments["worker-0"].arenas["master-0"])
    assert arena.read(feed_key(RATE), "float64", ()) == 0.25


@pytest.mark.parametrize(
    ("value", "came"),
    [
        (np.float32(0.5), r"float32\[\]"),
        (1, r"int64\[\]"),
        ([0.5], r"float64\[1\]"),
        (np.zeros((2, 3)), r"float64\[2, 3\]"),
        ("half", r"str\d+\[\]"),
    ],
)
def test_feed_of_wrong_shape_or_dtype_is_named(plan: RemotePlan, value: Any, came: str) -> None:
    with pytest.raises(RunnerError, match=rf"^feed rate:0: came {came}, expected float64\[\]$"):
        plan.feed({RATE: value})


@pytest.mark.parametrize(("tensor", "worker"), [(OLD, "worker-0"), (AWAY, "worker-1")])
def test_fetch_returns_a_copy(plan: RemotePlan, tensor: Tensor, worker: str) -> None:
    arena = ArenaWriter(plan.assignments[worker].arenas[worker])
    arena.put(fetch_key(tensor), np.arange(float(EXAMPLES)))
    fetched = plan.fetch(tensor)
    arena.put(fetch_key(tensor), np.zeros(EXAMPLES))
    assert fetched.tolist() == [0.0, 1.0, 2.0]
    assert fetched.flags.writeable


def test_unlinked_arenas_still_work(plan: RemotePlan, tmp_path: Path) -> None:
    arena = ArenaWriter(plan.assignments["worker-1"].arenas["worker-1"])
    assert len(list(tmp_path.iterdir())) == 3
    plan.unlink()
    assert list(tmp_path.iterdir()) == []
    arena.put(fetch_key(AWAY), np.ones(EXAMPLES))
    assert plan.fetch(AWAY).tolist() == [1.0, 1.0, 1.0]
