"""Chains of layers cut into stages: balanced, and cut where few bytes are sent."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.compile.cost import node_seconds
from runner.engine.compile.placement import colocation_groups
from runner.engine.compile.program_placement import stages
from runner.engine.graph import ops
from runner.engine.graph.device import Cluster, local_cluster, worker_device
from runner.engine.graph.graph import Graph


def chain(widths: list[int], examples: int = 64) -> Graph:
    """Products from one width to the next, each with its variable: nodes y1, y2, ..."""
    graph = Graph()
    x = ops.placeholder(graph, (examples, widths[0]), "float64", name="x")
    for k, (before, after) in enumerate(pairwise(widths), start=1):
        w = ops.variable(graph, (before, after), "float64", name=f"w{k}")
        attributes = {"transpose_a": False, "transpose_b": False}
        x = graph.add("matmul", [x, w], attributes, name=f"y{k}", colocate_with=[w.node])[0]
    return graph


def stage_of(graph: Graph, cluster: Cluster, count: int) -> list[int]:
    """The worker of every product."""
    groups = colocation_groups(graph, cluster, lambda node: None)
    choice = stages(graph, cluster, groups.of, groups.feasible, node_seconds)[count - 2]
    products = [node.name for node in graph if node.op == "matmul"]
    return [int(choice[groups.of[name]].split("task:")[1].split("/")[0]) for name in products]


def test_equal_layers_are_divided_evenly() -> None:
    free = local_cluster(3, latency_s=0.0, bytes_per_s=1e30)
    assert stage_of(chain([300] * 7), free, 3) == [0, 0, 1, 1, 2, 2]
    assert stage_of(chain([300] * 7), free, 2) == [0, 0, 0, 1, 1, 1]


def test_large_layer_has_a_separate_device() -> None:
    free = local_cluster(2, latency_s=0.0, bytes_per_s=1e30)
    assert stage_of(chain([100, 100, 100, 3000, 100]), free, 2) == [0, 0, 0, 1]


def test_cut_is_at_the_smallest_tensor() -> None:
    """Compute is balanced in the middle, but one layer later the tensor is far smaller."""
    slow = local_cluster(2, latency_s=0.0, bytes_per_s=1e8)
    assert stage_of(chain([300, 300, 300, 2, 300]), slow, 2) == [0, 0, 0, 1]


def test_constrained_group_satisfies_its_constraint() -> None:
    graph = chain([300] * 5)
    with graph.device(worker_device(0)):
        ops.neg(graph, graph.nodes["y4"][0], name="last")
    cluster = local_cluster(2, latency_s=0.0, bytes_per_s=1e30)
    groups = colocation_groups(graph, cluster, lambda node: None)
    (choice,) = stages(graph, cluster, groups.of, groups.feasible, node_seconds)
    assert choice[groups.of["last"]] == worker_device(0)
    assert choice[groups.of["y4"]] == worker_device(1)


@pytest.mark.parametrize("count", [2, 3])
@given(widths=st.lists(st.integers(1, 400), min_size=5, max_size=8), bandwidth=st.sampled_from([1e7, 1e9, 1e12]))
def test_no_other_cuts_are_better(count: int, widths: list[int], bandwidth: float) -> None:
    graph, cluster = chain(widths), local_cluster(3, latency_s=0.0, bytes_per_s=bandwidth)
    compute = [
        sum(node_seconds(graph, graph.nodes[name], cluster.devices[0]) for name in (f"w{k}", f"y{k}"))
        for k in range(1, len(widths))
    ]
    # The input belongs to no group that computes, so it crosses no cut.
    wire = [0.0, *(cluster.transfer_s(graph.spec(graph.nodes[f"y{k}"][0]).nbytes) for k in range(1, len(widths) - 1))]

    def slowest(edges: list[int]) -> float:
        return max((wire[begin] if begin else 0.0) + sum(compute[begin:end]) for begin, end in pairwise(edges))

    cuts = [[0, *inner, len(compute)] for inner in combinations(range(1, len(compute)), count - 1)]
    found = stage_of(graph, cluster, count)
    edges = [0, *(k for k in range(1, len(found)) if found[k] != found[k - 1]), len(found)]
    assert slowest(edges) == pytest.approx(min(map(slowest, cuts)), rel=1e-9)
