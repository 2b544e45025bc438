"""Launched steps of workers, which begin when their tensors have arrived, and delayed steps, on a virtual network."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.cluster.emulation import EmulatedLink
from runner.engine.cluster.transport.messages import IDLE, Done, Heartbeat, Launch
from runner.engine.compile.program import Client, Program
from runner.engine.graph.tensor import Tensor
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ClusterError
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.cluster.conftest import Source
from tests.engine.cluster.transport.fake_network import Faults
from tests.engine.cluster.virtual_cluster import NoAnswer, VirtualCluster, WorkerFailed, there_and_back, virtual_cluster
from tests.engine.run.launched_programs import tally
from tests.strategies.networks import NETWORKS, Examples, workload_of
from tests.strategies.training import Weights, expect_same_bits, trained

SERVER = "ps-0"


@contextmanager
def tally_cluster(folder: Path, registry: Registry, link: EmulatedLink | None = None) -> Iterator[VirtualCluster]:
    """Yield the ``tally`` program on two workers and a server, with all clients loaded and variables initialized."""
    program = tally()
    with virtual_cluster(program, folder, registry, lambda description: Source()) as cluster:
        cluster.set_up(link=link)
        for client in program.clients:
            cluster.load(client)
        cluster.run("init")
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path, registry: Registry) -> Iterator[VirtualCluster]:
    with tally_cluster(tmp_path, registry) as cluster:
        yield cluster


def launch(cluster: VirtualCluster, client: str, *workers: str, delay_s: float = 0.0) -> None:
    cluster.send(Launch(client, 0, delay_s), workers)


def done(cluster: VirtualCluster, worker: str) -> tuple[str, int]:
    """Return the plan of the next step that a worker finishes, and the number of launched steps that began earlier."""
    answer = cluster.answers(Done, [worker])[worker]
    return answer.plan, int(answer.stats["turn"])


def test_later_steps_overtake_a_step_that_waits_for_tensors(cluster: VirtualCluster) -> None:
    launch(cluster, "push_0", SERVER)
    launch(cluster, "fetch_1", SERVER)
    assert done(cluster, SERVER) == ("fetch_1", 0)
    assert cluster.endpoint.receive(5.0) is None
    assert cluster.progress[SERVER].now == Heartbeat(IDLE, 0)
    launch(cluster, "push_0", "worker-0")
    assert done(cluster, "worker-0") == ("push_0", 0)
    assert done(cluster, SERVER) == ("push_0", 1)


def test_ready_steps_begin_in_launch_order(cluster: VirtualCluster) -> None:
    launch(cluster, "work_0", "worker-0", delay_s=3.0)
    launch(cluster, "push_0", "worker-0", SERVER)
    begun = cluster.network.clock.now
    assert [done(cluster, "worker-0"), done(cluster, "worker-0")] == [("work_0", 0), ("push_0", 1)]
    assert done(cluster, SERVER) == ("push_0", 0)
    assert cluster.network.clock.now - begun == pytest.approx(3.0)
    plan = cluster.load("push_0")
    assert plan.fetch(cluster.program.clients["push_0"].fetches["total"]).tolist() == [1.0] * 3


def test_step_begins_when_its_tensor_is_due(tmp_path: Path, registry: Registry) -> None:
    with tally_cluster(tmp_path, registry, EmulatedLink(latency_s=2.0)) as cluster:
        begun = cluster.network.clock.now
        launch(cluster, "work_0", "worker-0")
        launch(cluster, "push_0", "worker-0", SERVER)
        assert [done(cluster, "worker-0")[0], done(cluster, "worker-0")[0]] == ["work_0", "push_0"]
        assert done(cluster, SERVER)[0] == "push_0"
        assert 2.0 <= cluster.network.clock.now - begun < 2.1


def test_unknown_plan_is_refused(cluster: VirtualCluster) -> None:
    launch(cluster, "other", SERVER)
    with pytest.raises(WorkerFailed, match="step 0 refused: plan 'other' is not loaded; loaded: init"):
        done(cluster, SERVER)


def test_tensor_of_another_step_does_not_begin_a_step_early(tmp_path: Path, registry: Registry) -> None:
    with tally_cluster(tmp_path, registry, EmulatedLink(latency_s=0.9)) as cluster:
        for k in range(2):
            launch(cluster, f"push_{k}", SERVER)
            launch(cluster, f"push_{k}", f"worker-{k}")
            assert done(cluster, f"worker-{k}") == (f"push_{k}", 0)
            assert cluster.endpoint.receive(0.2) is None
        launch(cluster, "fetch_1", SERVER)
        assert [done(cluster, SERVER) for _ in range(3)] == [("fetch_1", 0), ("push_0", 1), ("push_1", 2)]


def test_delay_begins_when_the_launch_is_read(cluster: VirtualCluster) -> None:
    begun = cluster.network.clock.now
    launch(cluster, "work_0", "worker-0", delay_s=3.0)
    assert cluster.endpoint.receive(1.0) is None
    launch(cluster, "push_0", "worker-0", delay_s=3.0)
    launch(cluster, "push_0", SERVER)
    assert [done(cluster, "worker-0")[0], done(cluster, "worker-0")[0]] == ["work_0", "push_0"]
    assert cluster.network.clock.now - begun == pytest.approx(4.0, abs=0.1)


def one_way() -> Program:
    """Return a program with a client ``away``: worker 0 reads and scales examples, worker 1 computes ``exp``."""
    program = there_and_back()
    run = program.clients["run"]
    away = Client("away", fetches={"away": Tensor("away")}, inputs=run.inputs, feeds=run.feeds, deferred=True)
    return replace(program, clients={"init": program.clients["init"], "away": away})


@pytest.mark.parametrize(("delay_s", "expected_s"), [(0.0, 2.0), (1.5, 2.0), (5.0, 5.0)])
def test_delay_and_transfer_overlap(delay_s: float, expected_s: float, tmp_path: Path, registry: Registry) -> None:
    with virtual_cluster(one_way(), tmp_path, registry, lambda description: Source()) as cluster:
        cluster.set_up(link=EmulatedLink(latency_s=2.0))
        plan = cluster.load("away")
        cluster.feed("away", {"rate": np.float64(1.0)})
        begin = cluster.network.clock.now
        cluster.send(Launch("away", 0, 0.0), ["worker-0"])
        cluster.send(Launch("away", 0, delay_s), ["worker-1"])
        cluster.answers(Done, plan.plans)
        assert cluster.network.clock.now - begin == pytest.approx(expected_s, abs=0.1)
        np.testing.assert_array_equal(plan.fetch(Tensor("away")), np.ones(3))
        cluster.shut_down()


BATCH = 7
STEPS = 3
WORKLOAD = workload_of(NETWORKS["dense"], Momentum(), batch_size=BATCH)


@cache
def expected(workers: int) -> tuple[Weights, list[Any]]:
    """Return weights and history of training ``WORKLOAD`` with ``workers`` workers in one process."""
    return trained(SyncData(workers=workers), WORKLOAD, STEPS)


def train(cluster: VirtualCluster) -> tuple[Weights, list[Any]]:
    """Set up the workers, train as ``trained`` does, and shut down; return weights and history."""
    cluster.set_up()
    cluster.run("init")
    rates = [{"step": np.int64(step), "learning_rate": 0.1 / (1 + step)} for step in range(STEPS)]
    fetched = [cluster.run("train", step, feeds) for step, feeds in enumerate(rates)]
    weights = cluster.run("save")
    assert not any(mailbox._tensors for mailbox in cluster.mailboxes.values())
    cluster.shut_down()
    return weights, [(float(each["loss"]), float(each["accuracy"])) for each in fetched]


@settings(max_examples=32)
@given(
    seed=st.integers(0, 2**32),
    workers=st.sampled_from([2, 3]),
    longest_s=st.sampled_from([0.0, 0.01, 1.0, 100.0]),
    duplicate=st.sampled_from([0.0, 0.5]),
    drop=st.sampled_from([0.0, 0.0, 0.005, 0.02]),
)
@pytest.mark.slow
def test_schedule_does_not_change_weights(
    tmp_path_factory: pytest.TempPathFactory, seed: int, workers: int, longest_s: float, duplicate: float, drop: float
) -> None:
    """If the network drops messages, the run may instead end with an error."""
    faults, program = Faults((0.0, longest_s), drop, duplicate), SyncData(workers=workers).build(WORKLOAD)
    made = (program, tmp_path_factory.mktemp("arenas"), load_kernels(), lambda description: Examples(BATCH))
    with virtual_cluster(*made, seed=seed, faults=faults) as cluster:
        try:
            weights, history = train(cluster)
        except (NoAnswer, ClusterError, WorkerFailed):
            assert drop
            return
    assert cluster.ended == dict.fromkeys(cluster.workers, 0)
    assert history == expected(workers)[1]
    expect_same_bits(weights, expected(workers)[0])
