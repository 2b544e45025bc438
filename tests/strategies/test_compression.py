"""``sync_data`` with compression: half the bytes, equal replicas, sums of the received values, and it learns."""

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.base import Task
from runner.strategies.collectives import COMBINES, Combine, ring_all_reduce, sharded_reduce
from runner.strategies.replica import shares
from runner.strategies.sync_data import SyncData
from runner.strategies.synchronous.batch_statistics import STATISTICS
from tests.all_pairs import all_pairs
from tests.engine.running import client, session
from tests.strategies.networks import NETWORKS, task_of
from tests.strategies.training import begun, expect_same_bits, replicas_of, trained

Array = NDArray[np.float32]

BATCH = 13
TRAINED = ["dense", "convolutional", "batch_normalised"]


def cut(x: Array) -> Array:
    """The upper 16 bits of finite numbers."""
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


def task_for(network: str) -> Task:
    return task_of(NETWORKS[network], Momentum(), batch_size=BATCH, dtype="float32")


def reduced(parts: list[Array], combine: Combine, registry: Registry) -> list[Array]:
    """Every worker's total with compressed transfers."""
    graph = Graph()
    placed = []
    for k, part in enumerate(parts):
        with graph.device(worker_device(k)):
            placed.append(ops.placeholder(graph, part.shape, "float32", name=f"part_{k}"))
    totals = combine(graph, placed, [worker_device(k) for k in range(len(parts))], "fc1/weights")
    cluster = local_cluster(len(parts), compression="high16")
    with session(graph, registry, client("run", totals, feeds=placed), cluster=cluster) as running:
        came = running.run("run", feeds={str(t): part for t, part in zip(placed, parts, strict=True)})
        return [came[str(total)] for total in totals]


def sum_of_slice(parts: list[Array], owner: int, combine: Combine) -> Array:
    """The sum of a slice on its owner, in NumPy."""
    if combine is sharded_reduce:
        arrived = [part if k == owner else cut(part) for k, part in enumerate(parts)]
        return cut(np.add.reduce(arrived))
    workers = len(parts)
    passed = parts[(owner + 1) % workers]
    for hop in range(2, workers + 1):
        passed = cut(passed) + parts[(owner + hop) % workers]
    return cut(passed)


@pytest.mark.parametrize("combine", [sharded_reduce, ring_all_reduce], ids=lambda each: each.__name__)
@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("size", [1, 11])
def test_a_sum_is_that_of_the_received_values_and_equal_on_all_workers(
    size: int, workers: int, combine: Combine, registry: Registry
) -> None:
    rng = np.random.default_rng(workers)
    parts = [rng.standard_normal(size, np.float32) for _ in range(workers)]
    expected = np.concatenate(
        [
            sum_of_slice([part[lo:hi] for part in parts], owner, combine)
            for owner, (lo, hi) in enumerate(shares(size, workers))
        ]
    )
    for total in reduced(parts, combine, registry):
        np.testing.assert_array_equal(total, expected, strict=True)


@pytest.mark.parametrize("strategy", [SyncData(), SyncData(combine="parameter_server", servers=2)])
def test_only_training_is_compressed(strategy: SyncData) -> None:
    clients = strategy.build(task_for("dense")).clients
    assert {name for name, each in clients.items() if not each.signature.exact} == {"train"}


@all_pairs(workers=[2, 3, 4], combine=sorted(COMBINES), statistics=sorted(STATISTICS), network=list(TRAINED))
def test_replicas_stay_identical(network: str, workers: int, combine: str, statistics: str, registry: Registry) -> None:
    strategy, task = SyncData(workers=workers, combine=combine, statistics=statistics), task_for(network)
    replicas = replicas_of(strategy, task)
    with begun(strategy, task, registry, compression="high16", **replicas) as trainer:
        trainer.train(range(3))
        first, *others = (trainer.session.run(name) for name in replicas)
    for other in others:
        expect_same_bits(first, other)


@pytest.mark.parametrize("bucket_bytes", [0, 1 << 20])
@pytest.mark.parametrize("combine", sorted(COMBINES))
@pytest.mark.parametrize("network", TRAINED)
def test_two_bytes_are_sent_where_there_were_four(
    network: str, combine: str, bucket_bytes: int, registry: Registry
) -> None:
    """Scalar scores keep four bytes: two from each worker but the first."""
    sent, strategy = {}, SyncData(workers=3, combine=combine, bucket_bytes=bucket_bytes)
    for compression in ("none", "high16"):
        with begun(strategy, task_for(network), registry, compression=compression) as trainer:
            sent[compression] = [count // 2 for count in trainer.sent(range(2))]
    scores = [0, 8, 8]
    assert [2 * (h - s) for h, s in zip(sent["high16"], scores, strict=True)] == [
        n - s for n, s in zip(sent["none"], scores, strict=True)
    ]
    assert min(sent["none"]) > 8


def test_a_compressed_step_differs_by_the_dropped_bits(registry: Registry) -> None:
    """Parts and their sum lose less than 1/128 of themselves each: 1/64 of a change, twice that where parts cancel."""
    strategy, task = SyncData(workers=4), task_for("dense")
    before, _ = trained(strategy, task, registry, 0)
    exact, lossy = (trained(strategy, task, registry, 1, compression=each)[0] for each in ("none", "high16"))
    for name in (name for name in exact if "velocity" not in name):
        change = np.abs(exact[name] - before[name]).max()
        assert 0 < np.abs(lossy[name] - exact[name]).max() <= change / 32, name
