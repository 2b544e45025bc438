"""Every collective adds in its fixed order and sends the bytes of its formula, with and without compression."""

from collections.abc import Callable
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner.engine.graph import Graph, Tensor, local_cluster, ops, worker_device
from runner.kernels.registry import Registry
from runner.optimizers import Momentum
from runner.strategies import SyncData, Workload
from runner.strategies.collectives import (
    COMBINES,
    SMALLEST,
    Combine,
    all_reduce,
    hierarchical_reduce,
    in_buckets,
    ring_all_reduce,
    sharded_reduce,
)
from runner.strategies.replica import shares
from runner.strategies.synchronous.batch_statistics import STATISTICS
from tests.all_pairs import all_pairs
from tests.engine.compile.passes.test_transfers import truncated
from tests.engine.running import client, session
from tests.strategies.networks import NETWORKS, workload_of
from tests.strategies.training import begun, combined_by, expect_same_bits, replicas_of, trained

Array = NDArray[Any]
Parts = list[Array]

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def parts_of(shape: tuple[int, ...], workers: int, dtype: str = "float64") -> Parts:
    """Return values of many magnitudes, so that another order of summation gives other bits."""
    rng = np.random.default_rng(workers)
    return [np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-8, 8, shape), dtype) for _ in range(workers)]


COLLECTIVES = {
    "sharded_reduce": sharded_reduce,
    "ring_all_reduce": ring_all_reduce,
    "all_reduce": all_reduce,
    "hierarchical, 2": partial(hierarchical_reduce, workers_per_host=2),
    "hierarchical, 3": partial(hierarchical_reduce, workers_per_host=3),
}

every_collective = pytest.mark.parametrize("combine", COLLECTIVES.values(), ids=COLLECTIVES)


def per_host(combine: Combine) -> int:
    """Return the number of workers of each host, 1 for a collective without hosts."""
    return combine.keywords["workers_per_host"] if isinstance(combine, partial) else 1


def reduce_graph(parts: Parts, combine: Combine) -> tuple[Graph, list[Tensor], list[Tensor]]:
    """Return a graph that sums one placeholder per worker, these placeholders, and the total on each worker."""
    graph = Graph()
    placed = []
    for k, part in enumerate(parts):
        with graph.device(worker_device(k)):
            placed.append(ops.placeholder(graph, part.shape, part.dtype.name, name=f"part_{k}"))
    devices = [worker_device(k) for k in range(len(parts))]
    return graph, placed, combine(graph, placed, devices, "fc1/weights")


def run(
    parts: Parts, registry: Registry, combine: Combine, compression: str = "none"
) -> tuple[Parts, list[int], list[int]]:
    """Run the reduction; return every worker's total, and the planned and the counted bytes that each worker sends."""
    graph, placed, totals = reduce_graph(parts, combine)
    cluster = local_cluster(len(parts), compression=compression)
    with session(graph, registry, client("run", totals, feeds=placed), cluster=cluster) as opened:
        fed = {str(tensor): part for tensor, part in zip(placed, parts, strict=True)}
        fetched = opened.run("run", feeds=fed)
        plans = opened.plans("run")
        planned = [plans[device].sent_bytes if (device := worker_device(k)) in plans else 0 for k in range(len(parts))]
        return [fetched[str(total)] for total in totals], planned, opened.sent_bytes()


def sum_of(parts: Parts, combine: Combine, sent: Callable[[Array], Array]) -> Array:
    """Return the sum of vectors in the order of the collective. sent: maps a tensor to what its receiver gets."""
    total, group = np.empty_like(parts[0]), per_host(combine)
    for owner, (lo, hi) in enumerate(shares(total.size, len(parts) if group == 1 else group)):
        slices = [part[lo:hi] for part in parts]
        if group > 1:
            hosts = [slices[first : first + group] for first in range(0, len(parts), group)]
            own = [sum_at(owner, host, sent) for host in hosts]
            total[lo:hi] = sent(sum_of(own, sharded_reduce, sent) if len(own) > 1 else own[0])
        elif len(parts) == 2:
            total[lo:hi] = np.add(*map(sent, slices))
        elif combine is ring_all_reduce:
            passed, *others = slices[owner + 1 :] + slices[: owner + 1]
            total[lo:hi] = sent(reduce(lambda so_far, own: sent(so_far) + own, others, passed))
        else:
            total[lo:hi] = sent(sum_at(owner, slices, sent))
    return total


def sum_at(owner: int, parts: Parts, sent: Callable[[Array], Array]) -> Array:
    """Return the sum in worker order that the owner computes from its part and from the received parts."""
    return np.asarray(reduce(np.add, [part if k == owner else sent(part) for k, part in enumerate(parts)]))


def bytes_of(size: int, width: int, workers: int, combine: Combine) -> list[int]:
    """Return the bytes that each worker sends."""
    if combine is all_reduce or workers == 1:
        return [(workers - 1) * size * width] * workers
    owned = [hi - lo for lo, hi in shares(size, workers)]
    group = per_host(combine)
    if group > 1:
        of_host = [hi - lo for lo, hi in shares(size, group)]
        between = [bytes_of(own, 1, workers // group, sharded_reduce) for own in of_host]
        sent = [size + (group - 2) * of_host[k % group] + between[k % group][k // group] for k in range(workers)]
    elif combine is ring_all_reduce:
        sent = [2 * size - owned[k] - owned[(k + 1) % workers] for k in range(workers)]
    else:
        sent = [(size - n) + (workers - 1) * n for n in owned]
    assert sum(sent) == 2 * (workers - 1) * size
    return [count * width for count in sent]


@every_collective
@settings(max_examples=40)
@given(shape=shapes, workers=st.integers(1, 5), dtype=st.sampled_from(["float32", "float64", "compressed"]))
def test_every_worker_has_the_ordered_sum_for_the_bytes_of_the_formula(
    combine: Combine, shape: tuple[int, ...], workers: int, dtype: str, registry: Registry
) -> None:
    """With compression, truncated values are added; this is not tested for ``all_reduce``: totals would differ.

    Scalars are not compressed; only slices of them are, which are vectors.
    """
    group = per_host(combine)
    workers = group * (workers if group == 1 else (workers + 1) // 2)
    whole = combine is all_reduce or (workers == 2 and group == 1 and shape == ())
    compressed = dtype == "compressed" and not whole
    parts = parts_of(shape, workers, "float32" if dtype == "compressed" else dtype)
    totals, planned, counted = run(parts, registry, combine, "high16" if compressed else "none")
    expected = parts[0]
    if workers > 1:
        expected = sum_of([part.reshape(-1) for part in parts], combine, truncated if compressed else np.asarray)
    assert len(totals) == workers
    for total in totals:
        np.testing.assert_array_equal(total, expected.reshape(shape), strict=True)
    width = 2 if compressed else parts[0].itemsize
    assert counted == planned == bytes_of(parts[0].size, width, workers, combine)


def test_two_sums_with_one_name_are_separate_groups() -> None:
    graph, placed, _ = reduce_graph(parts_of((3,), 2), all_reduce)
    all_reduce(graph, placed, [worker_device(0), worker_device(1)], "fc1/weights")
    groups = [node.attributes["group"] for node in graph if node.op == "all_reduce"]
    assert groups[0] == groups[1] != groups[2] == groups[3]


def test_in_a_ring_each_worker_sends_to_its_neighbour_only(registry: Registry) -> None:
    parts = parts_of((7,), 4)
    graph, placed, totals = reduce_graph(parts, ring_all_reduce)
    with session(graph, registry, client("run", totals, feeds=placed), cluster=local_cluster(4)) as opened:
        plans = opened.plans("run")
    for k in range(4):
        sends = [each for each in plans[worker_device(k)].instructions if each.op == "send"]
        assert {each.attributes["destination"] for each in sends} == {worker_device((k + 1) % 4)}


@every_collective
def test_one_worker_adds_no_nodes(combine: Combine) -> None:
    graph, placed, totals = reduce_graph(parts_of((3, 2), 1), combine)
    assert totals == placed
    assert len(graph) == 1


@given(sizes=st.lists(st.integers(0, 50), max_size=12), limit=st.integers(0, 100))
def test_buckets_hold_consecutive_gradients_up_to_the_limit(sizes: list[int], limit: int) -> None:
    buckets = in_buckets(sizes, limit)
    assert [i for bucket in buckets for i in bucket] == list(range(len(sizes)))
    for bucket, following in pairwise(buckets):
        filled, left = sum(sizes[i] for i in bucket), sum(sizes[bucket.start :])
        room = min(limit, max(left // 2, limit // SMALLEST))
        assert filled <= room or len(bucket) == 1
        assert filled + sizes[following.start] > room


# ``sync_data`` with compression: half the bytes, and identical replicas.


def workload_for(network: str) -> Workload:
    return workload_of(network, Momentum(), dtype="float32")


@pytest.mark.parametrize("strategy", [SyncData(), SyncData(combine="parameter_server", servers=2)])
def test_only_training_is_compressed(strategy: SyncData) -> None:
    clients = strategy.build(workload_for("dense")).clients
    assert {name for name, each in clients.items() if not each.signature.exact} == {"train"}


@all_pairs(
    network=sorted(NETWORKS),
    workers=[2, 3, 4],
    combine=sorted(COMBINES),
    statistics=sorted(STATISTICS),
    compression=["none", "high16"],
)
def test_replicas_stay_identical(network: str, workers: int, combine: str, statistics: str, compression: str) -> None:
    strategy, workload = SyncData(**combined_by(combine, workers), statistics=statistics), workload_for(network)
    replicas = replicas_of(strategy, workload)
    with begun(strategy, workload, compression=compression, **replicas) as trainer:
        for steps in (range(1), range(1, 3)):
            trainer.train(steps)
            first, *others = (trainer.session.run(name) for name in replicas)
            for other in others:
                expect_same_bits(first, other)


@all_pairs(network=["convolutional", "batch_normalised"], combine=sorted(COMBINES), bucket_bytes=[0, 1 << 20])
def test_compression_sends_two_bytes_for_four(network: str, combine: str, bucket_bytes: int) -> None:
    """Loss and accuracy keep four bytes each; every worker but the first sends them."""
    sent, strategy = {}, SyncData(**combined_by(combine, 3), bucket_bytes=bucket_bytes)
    for compression in ("none", "high16"):
        with begun(strategy, workload_for(network), compression=compression) as trainer:
            sent[compression] = [count // 2 for count in trainer.sent(range(2))]
    scores = [0, 8, 8]
    assert [2 * (h - s) for h, s in zip(sent["high16"], scores, strict=True)] == [
        n - s for n, s in zip(sent["none"], scores, strict=True)
    ]
    assert min(sent["none"]) > 8


def test_a_compressed_step_differs_by_the_lost_bits() -> None:
    """Parts and sum each lose less than 1/128 of their size, together 1/64; the limit is 1/32, as parts may cancel."""
    strategy, workload = SyncData(workers=4), workload_for("dense")
    before, _ = trained(strategy, workload, 0)
    exact, lossy = (trained(strategy, workload, 1, compression=each)[0] for each in ("none", "high16"))
    for name in (name for name in exact if "velocity" not in name):
        change = np.abs(exact[name] - before[name]).max()
        assert 0 < np.abs(lossy[name] - exact[name]).max() <= change / 32, name
