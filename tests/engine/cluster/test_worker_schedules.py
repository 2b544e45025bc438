"""For any delays, reordering and duplication of messages, the weights equal those of one process bit for bit."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.compile.program import Program
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ClusterError
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.cluster.transport.fake_network import Faults
from tests.engine.cluster.virtual_cluster import NoAnswer, VirtualCluster, WorkerFailed, virtual_cluster
from tests.strategies.networks import NETWORKS, Examples, task_of
from tests.strategies.training import Weights, expect_same_bits, trained

BATCH = 7
STEPS = 3
TASK = task_of(NETWORKS["dense"], Momentum(), batch_size=BATCH)


def training_source(description: Mapping[str, Any]) -> Examples:
    return Examples(BATCH)


@cache
def training_program(workers: int) -> Program:
    return SyncData(workers=workers).build(TASK)


@cache
def expected(workers: int) -> tuple[Weights, list[Any]]:
    """Weights and history of the same program in one process."""
    return trained(SyncData(workers=workers), TASK, load_kernels(), STEPS)


def rates(step: int) -> dict[str, object]:
    """The feeds of ``trained``."""
    return {"step": np.int64(step), "learning_rate": 0.1 / (1 + step)}


def train(cluster: VirtualCluster) -> tuple[Weights, list[Any]]:
    """Set up, train and shut down."""
    cluster.set_up()
    cluster.run("init")
    fetched = [cluster.run("train", step, rates(step)) for step in range(STEPS)]
    weights = cluster.run("save")
    assert [mailbox.pending for mailbox in cluster.mailboxes.values()] == [[]] * len(cluster.workers)
    cluster.shut_down()
    return weights, [(float(each["loss"]), float(each["accuracy"])) for each in fetched]


def expect_the_weights_of_one_process(weights: Weights, history: list[Any], workers: int) -> None:
    local_weights, local_history = expected(workers)
    assert history == local_history
    expect_same_bits(weights, local_weights)


@settings(max_examples=16)
@given(
    seed=st.integers(0, 2**32),
    workers=st.sampled_from([2, 3]),
    longest_s=st.sampled_from([0.0, 0.01, 1.0, 100.0]),
    duplicate=st.sampled_from([0.0, 0.5]),
)
def test_schedule_does_not_change_weights(
    tmp_path_factory: pytest.TempPathFactory, seed: int, workers: int, longest_s: float, duplicate: float
) -> None:
    faults = Faults(delay_s=(0.0, longest_s), duplicate=duplicate)
    arenas = tmp_path_factory.mktemp("arenas")
    with virtual_cluster(
        training_program(workers), arenas, load_kernels(), training_source, seed=seed, faults=faults
    ) as cluster:
        weights, history = train(cluster)
    assert cluster.ended == dict.fromkeys(cluster.workers, 0)
    expect_the_weights_of_one_process(weights, history, workers)


@settings(max_examples=16)
@given(seed=st.integers(0, 2**32), drop=st.sampled_from([0.005, 0.02]))
def test_lossy_network_gives_the_same_weights_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, seed: int, drop: float
) -> None:
    faults = Faults(delay_s=(0.0, 1.0), drop=drop)
    arenas = tmp_path_factory.mktemp("arenas")
    with virtual_cluster(
        training_program(2), arenas, load_kernels(), training_source, seed=seed, faults=faults
    ) as cluster:
        try:
            weights, history = train(cluster)
        except (NoAnswer, ClusterError, WorkerFailed):
            return
    expect_the_weights_of_one_process(weights, history, 2)
