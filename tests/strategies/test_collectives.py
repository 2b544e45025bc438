"""Every collective is the ordered sum and sends the bytes of its formula."""

from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from runner.kernels.registry import Registry
from runner.strategies.collectives import SMALLEST, Combine, all_reduce, in_buckets, ring_all_reduce, sharded_reduce
from runner.strategies.replica import shares
from tests.engine.running import client, session

Parts = list[NDArray[np.floating]]

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def parts_of(shape: tuple[int, ...], workers: int, dtype: str = "float64") -> Parts:
    """Values of many magnitudes, so that another order of summation has other bits."""
    rng = np.random.default_rng(workers)
    return [np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-8, 8, shape), dtype) for _ in range(workers)]


both = pytest.mark.parametrize("combine", [sharded_reduce, ring_all_reduce, all_reduce], ids=lambda each: each.__name__)


def reduce_graph(parts: Parts, combine: Combine = sharded_reduce) -> tuple[Graph, list[Tensor], list[Tensor]]:
    """One placeholder per worker and their sum; returns the graph, the parts and the totals."""
    graph = Graph()
    placed = []
    for k, part in enumerate(parts):
        with graph.device(worker_device(k)):
            placed.append(ops.placeholder(graph, part.shape, part.dtype.name, name=f"part_{k}"))
    devices = [worker_device(k) for k in range(len(parts))]
    return graph, placed, combine(graph, placed, devices, "fc1/weights")


def run(parts: Parts, registry: Registry, combine: Combine = sharded_reduce) -> tuple[Parts, list[int], list[int]]:
    """Run the reduction; returns every worker's total, and bytes sent by worker as planned and as counted."""
    graph, placed, totals = reduce_graph(parts, combine)
    asked = client("run", totals, feeds=placed)
    with session(graph, registry, asked, cluster=local_cluster(len(parts))) as opened:
        fed = {str(tensor): part for tensor, part in zip(placed, parts, strict=True)}
        fetched = opened.run("run", feeds=fed)
        plans = opened.plans("run")
        planned = [plans[device].sent_bytes if (device := worker_device(k)) in plans else 0 for k in range(len(parts))]
        return [fetched[str(total)] for total in totals], planned, opened.sent_bytes()


def sum_of_slice(parts: Parts, owner: int, combine: Combine) -> NDArray[np.floating]:
    """The sum of a slice of flattened tensors, in the order of the collective."""
    turns = range(owner + 1, owner + 1 + len(parts)) if combine is ring_all_reduce else range(len(parts))
    return reduce(np.add, [parts[k % len(parts)] for k in turns])


def bytes_of(size: int, width: int, workers: int, combine: Combine) -> list[int]:
    """The bytes that each worker sends."""
    owned = [hi - lo for lo, hi in shares(size, workers)]
    if combine is all_reduce or workers == 1:
        return [(workers - 1) * size * width] * workers
    if combine is ring_all_reduce:
        sent = [2 * size - owned[k] - owned[(k + 1) % workers] for k in range(workers)]
    else:
        sent = [(size - n) + (workers - 1) * n for n in owned]
    assert sum(sent) == 2 * (workers - 1) * size
    return [count * width for count in sent]


@both
@settings(max_examples=60)
@given(shape=shapes, workers=st.integers(1, 5), dtype=st.sampled_from(["float32", "float64"]))
def test_every_worker_has_the_ordered_sum_for_the_bytes_of_the_formula(
    combine: Combine, shape: tuple[int, ...], workers: int, dtype: str, registry: Registry
) -> None:
    parts = parts_of(shape, workers, dtype)
    totals, planned, counted = run(parts, registry, combine)
    expected = np.empty(parts[0].size, dtype)
    for owner, (lo, hi) in enumerate(shares(parts[0].size, workers)):
        expected[lo:hi] = sum_of_slice([part.reshape(-1)[lo:hi] for part in parts], owner, combine)
    assert len(totals) == workers
    for total in totals:
        np.testing.assert_array_equal(total, expected.reshape(shape), strict=True)
    assert counted == planned == bytes_of(parts[0].size, parts[0].itemsize, workers, combine)


def test_sums_of_one_name_are_separate_groups() -> None:
    graph, placed, _ = reduce_graph(parts_of((3,), 2), all_reduce)
    all_reduce(graph, placed, [worker_device(0), worker_device(1)], "fc1/weights")
    groups = [node.attributes["group"] for node in graph if node.op == "all_reduce"]
    assert groups[0] == groups[1] != groups[2] == groups[3]


def test_around_a_ring_each_worker_sends_to_its_neighbour_only(registry: Registry) -> None:
    parts = parts_of((7,), 4)
    graph, placed, totals = reduce_graph(parts, ring_all_reduce)
    with session(graph, registry, client("run", totals, feeds=placed), cluster=local_cluster(4)) as opened:
        plans = opened.plans("run")
    for k in range(4):
        sends = [each for each in plans[worker_device(k)].instructions if each.op == "send"]
        assert {each.attributes["destination"] for each in sends} == {worker_device((k + 1) % 4)}


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_fewer_elements_than_workers_are_summed_once_each(shape: tuple[int, ...]) -> None:
    graph, placed, _ = reduce_graph(parts_of(shape, 4))
    assert [node.op for node in graph].count("add_n") == graph.spec(placed[0]).size


@both
def test_one_worker_adds_no_nodes(combine: Combine) -> None:
    graph, placed, totals = reduce_graph(parts_of((3, 2), 1), combine)
    assert totals == placed
    assert len(graph) == 1


def test_each_sum_is_made_by_the_worker_that_owns_it() -> None:
    graph, _, totals = reduce_graph(parts_of((7,), 3))
    sums = [node for node in graph if node.op == "add_n"]
    assert [(node.device, node.outputs[0].shape) for node in sums] == [
        (worker_device(0), (3,)),
        (worker_device(1), (2,)),
        (worker_device(2), (2,)),
    ]
    assert [graph.nodes[total.node].device for total in totals] == [worker_device(k) for k in range(3)]


@given(sizes=st.lists(st.integers(0, 50), max_size=12), limit=st.integers(0, 100))
def test_buckets_hold_neighbours_up_to_the_limit(sizes: list[int], limit: int) -> None:
    buckets = in_buckets(sizes, limit)
    assert [i for bucket in buckets for i in bucket] == list(range(len(sizes)))
    for bucket, following in pairwise(buckets):
        filled, left = sum(sizes[i] for i in bucket), sum(sizes[bucket.start :])
        room = min(limit, max(left // 2, limit // SMALLEST))
        assert filled <= room or len(bucket) == 1
        assert filled + sizes[following.start] > room


def test_buckets_grow_smaller_towards_the_end() -> None:
    assert in_buckets([10] * 32, 160) == [range(16), range(16, 24), range(24, 28), range(28, 30), range(30, 32)]
    assert in_buckets([10] * 32, 80)[:3] == [range(8), range(8, 16), range(16, 24)]
    assert in_buckets([10] * 3, 0) == [range(1), range(1, 2), range(2, 3)]
