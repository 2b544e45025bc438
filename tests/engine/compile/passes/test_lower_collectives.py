"""Sums over workers by a library: on all devices or on none, in an order in which no device waits forever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from runner.engine.compile.compile import Compiled, Signature, compile_signature
from runner.engine.compile.passes.lower_collectives import gathered, lower_collectives
from runner.engine.compile.passes.prune import remove_dead_code
from runner.engine.compile.passes.rewriting import Roots, needed_by
from runner.engine.graph import ops
from runner.engine.graph.device import Cluster, Gpus, local_cluster
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.verify import verify
from runner.strategies.sync_data import SyncData
from tests.gpu.gpus import registry_of
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.strategies.test_sync_data import task_for

DEVICES = [f"/job:worker/task:{k}/device:gpu:0" for k in range(3)]


def on_gpus(workers: int, **more: float) -> Cluster:
    """Workers with a separate GPU each, and NCCL between them."""
    return local_cluster(workers, gpus=Gpus(tuple(range(workers))), collectives="nccl", **more)


def parts_on(graph: Graph, devices: Sequence[str], name: str = "part") -> list[Tensor]:
    """A part on each device."""
    parts = []
    for k, device in enumerate(devices):
        with graph.device(device):
            parts.append(ops.placeholder(graph, (4,), "float32", name=f"{name}_{k}"))
    return parts


def summed(graph: Graph, parts: Sequence[Tensor], group: str, devices: Sequence[str] = DEVICES) -> list[Tensor]:
    """A group of sums of all parts, one on each device."""
    totals = []
    for k, device in enumerate(devices):
        with graph.device(device):
            totals.append(ops.all_reduce(graph, parts, group=group, rank=k, name=f"{group}_{k}"))
    return totals


def lowered(graph: Graph, *fetches: Tensor, members: Sequence[str] = DEVICES) -> Graph:
    result, moved = lower_collectives(graph, Roots.of(fetches), members)
    assert moved == {}
    verify(result)
    return result


def sums(graph: Graph, device: str) -> list[Node]:
    return [node for node in graph if node.op == "collective_sum" and node.device == device]


def test_each_device_passes_its_own_part_to_the_library() -> None:
    graph = Graph()
    parts = parts_on(graph, DEVICES)
    result = lowered(graph, *summed(graph, parts, "g"))
    for k, device in enumerate(DEVICES):
        (node,) = sums(result, device)
        assert (node.name, node.inputs) == (f"g_{k}", (parts[k],))
        assert node.attributes == {"group": "g", "rank": k, "size": 3}
    assert all(result.nodes[t.node].device == node.device for node in result for t in node.inputs)


def test_groups_have_the_same_order_on_every_device_and_edges_that_keep_it() -> None:
    graph = Graph()
    first, second = (summed(graph, parts_on(graph, DEVICES, f"of_{g}"), g) for g in ("a", "b"))
    result = lowered(graph, *first, *second)
    for k, device in enumerate(DEVICES):
        one, other = sums(result, device)
        assert (one.attributes["group"], one.control_inputs) == ("a", ())
        assert (other.attributes["group"], other.control_inputs) == ("b", (f"a_{k}",))


def test_groups_whose_nodes_alternate_have_the_same_order_too() -> None:
    graph = Graph()
    of_a, of_b = (parts_on(graph, DEVICES[:2], f"of_{g}") for g in ("a", "b"))
    for device, groups in ((0, "ab"), (1, "ba")):
        for group in groups:
            with graph.device(DEVICES[device]):
                ops.all_reduce(graph, of_a if group == "a" else of_b, group=group, rank=device)
    result = lowered(graph, members=DEVICES[:2])
    orders = [[node.attributes["group"] for node in sums(result, device)] for device in DEVICES[:2]]
    assert orders[0] == orders[1]


def test_sum_may_be_a_part_of_a_later_sum() -> None:
    graph = Graph()
    totals = summed(graph, summed(graph, parts_on(graph, DEVICES), "a"), "b")
    result = lowered(graph, *totals)
    assert [len(sums(result, device)) for device in DEVICES] == [2, 2, 2]


def incomplete(graph: Graph) -> None:
    parts = parts_on(graph, DEVICES)
    for k in (0, 2):
        with graph.device(DEVICES[k]):
            ops.all_reduce(graph, parts, group="g", rank=k)


def of_other_parts(graph: Graph) -> None:
    parts, others = parts_on(graph, DEVICES), parts_on(graph, DEVICES, "other")
    for k, device in enumerate(DEVICES):
        with graph.device(device):
            ops.all_reduce(graph, parts if k else others, group="g", rank=k)


def in_other_order(graph: Graph) -> None:
    devices = [DEVICES[1], DEVICES[0], DEVICES[2]]
    summed(graph, parts_on(graph, devices), "g", devices)


def of_parts_elsewhere(graph: Graph) -> None:
    summed(graph, parts_on(graph, [DEVICES[0]] * 3), "g")


def twice(graph: Graph) -> None:
    parts = parts_on(graph, DEVICES)
    for _ in range(2):
        summed(graph, parts, "g")


def without_one(graph: Graph) -> None:
    summed(graph, parts_on(graph, DEVICES[:2]), "g", DEVICES[:2])


@pytest.mark.parametrize(
    "built",
    [incomplete, of_other_parts, in_other_order, of_parts_elsewhere, twice, without_one],
    ids=lambda b: b.__name__,
)
def test_group_that_the_library_cannot_sum_does_not_change(built: Callable[[Graph], None]) -> None:
    graph = Graph()
    built(graph)
    result = lowered(graph)
    assert list(result) == list(graph)


def test_sum_that_other_devices_wait_for_is_no_dead_code() -> None:
    graph = Graph()
    totals = summed(graph, parts_on(graph, DEVICES), "g")
    result = lowered(graph, totals[0])
    kept, _ = remove_dead_code(result, Roots.of(totals[:1]))
    assert [len(sums(kept, device)) for device in DEVICES] == [1, 1, 1]


def in_pieces() -> tuple[Graph, list[str]]:
    """Two devices, a sum over them, and on each a node before it, after it and independent of it."""
    graph = Graph()
    for k in range(2):
        with graph.device(DEVICES[k]):
            part = ops.placeholder(graph, (4,), "float32", name=f"before_{k}")
            total = ops.collective_sum(graph, part, group="g", rank=k, size=2, name=f"sum_{k}")
            ops.neg(graph, total, name=f"after_{k}")
            ops.neg(graph, part, name=f"beside_{k}")
    return graph, ["before_0", "sum_0", "after_0", "beside_0", "before_1", "beside_1", "sum_1", "after_1"]


def test_group_has_the_place_of_its_last_node_without_other_nodes_in_between() -> None:
    graph, order = in_pieces()
    assert gathered(graph, order) == [
        *("before_0", "beside_0", "before_1", "beside_1"),
        *("sum_0", "sum_1", "after_0", "after_1"),
    ]


def test_order_without_sums_does_not_change() -> None:
    graph = Graph()
    parts_on(graph, DEVICES)
    assert gathered(graph, ["part_2", "part_0", "part_1"]) == ["part_2", "part_0", "part_1"]


def test_sums_that_wait_for_each_other_are_refused() -> None:
    graph = Graph()
    with graph.device(DEVICES[0]):
        one = ops.collective_sum(graph, parts_on(graph, DEVICES[:1])[0], group="g", rank=0, size=2, name="one")
    with graph.device(DEVICES[1]):
        ops.collective_sum(graph, one, group="g", rank=1, size=2, name="other")
    with pytest.raises(ShapeError, match=r"nodes one: one device computes these after a sum over all devices"):
        gathered(graph, ["one", "part_0", "other"])


def compiled(workers: int, cluster: Cluster, folder: Path) -> Compiled:
    program = SyncData(workers=workers, combine="all_reduce", bucket_bytes=200).build(task_for("convolutional"))
    return compile_signature(
        program.graph, program.clients["train"].signature, cluster, registry_of(EmulatedRuntime(folder))
    )


@pytest.mark.parametrize("workers", [2, 4])
def test_training_step_sends_no_gradients(workers: int, compiled_sources: Path) -> None:
    found = compiled(workers, on_gpus(workers), compiled_sources)
    for part in found.parts.values():
        verify(part.graph)
    orders = []
    for part in found.parts.values():
        names: dict[str, list[str]] = {node.op: [] for node in part.graph}
        for node in part.graph:
            names[node.op].append(node.attributes.get("group", node.name))
        assert "all_reduce" not in names
        assert len(names.get("send", [])) <= 2, "loss and accuracy of the share"
        orders.append(names["collective_sum"])
    assert all(order == orders[0] for order in orders)
    assert len(orders[0]) > 2


def expect_all_end(found: Compiled) -> None:
    """Expect that all devices finish; a sum waits until all devices are in it, a receive until its send has run."""
    left = [list(part.graph) for part in found.parts.values()]
    sent: set[str] = set()
    while any(left):
        begun = sum(_run_until_it_waits(nodes, sent) for nodes in left)
        waiting = {nodes[0].attributes.get("group") if nodes else None for nodes in left}
        if len(waiting) == 1 and None not in waiting:
            for nodes in left:
                nodes.pop(0)
        else:
            assert begun, "each device waits for another"


def test_all_devices_finish_a_training_step(compiled_sources: Path) -> None:
    expect_all_end(compiled(3, on_gpus(3), compiled_sources))


def test_device_sends_an_awaited_tensor_before_it_begins_a_sum(compiled_sources: Path) -> None:
    """The second device has its part late, and meanwhile needs a tensor from the first."""
    graph = Graph()
    first, second = parts_on(graph, DEVICES[:2])
    with graph.device(DEVICES[1]):
        question = ops.neg(graph, second, name="question")
    with graph.device(DEVICES[0]):
        answer = ops.exp(graph, question, name="answer")
    with graph.device(DEVICES[1]):
        known = ops.abs(graph, answer)
        late = ops.fill(graph, 0.5, (1 << 22,), "float32")
        for _ in range(20):
            late = ops.exp(graph, late)
        late = ops.add(graph, second, ops.slice(graph, late, begin=(0,), size=(4,)))
    totals = summed(graph, [first, late], "g", DEVICES[:2])
    signature = Signature((known, *totals), feeds=(first, second))
    cluster = on_gpus(2, latency_s=1e-7)
    expect_all_end(compile_signature(graph, signature, cluster, registry_of(EmulatedRuntime(compiled_sources))))


def _run_until_it_waits(nodes: list[Node], sent: set[str]) -> int:
    """Run the nodes of a device until one has to wait; return their number."""
    count = 0
    while nodes and nodes[0].op != "collective_sum" and (nodes[0].op != "recv" or nodes[0].attributes["key"] in sent):
        node = nodes.pop(0)
        count += 1
        if node.op == "send":
            sent.add(node.attributes["key"])
    return count


def test_parts_are_sent_without_the_library(compiled_sources: Path) -> None:
    cluster = local_cluster(2, gpus=Gpus((0, 1)))
    graphs = [part.graph for part in compiled(2, cluster, compiled_sources).parts.values()]
    assert {node.op for graph in graphs for node in graph} >= {"all_reduce", "send"}
    assert not any(sums(graph, device) for graph in graphs for device in DEVICES)


def test_parts_of_a_sum_that_one_device_needs_are_sent(compiled_sources: Path) -> None:
    graph = Graph()
    parts = parts_on(graph, DEVICES)
    totals = summed(graph, parts, "g")
    with graph.device(DEVICES[0]):
        whole = ops.neg(graph, totals[0])
    signature = Signature((whole,), feeds=tuple(parts))
    found = compile_signature(graph, signature, on_gpus(3), registry_of(EmulatedRuntime(compiled_sources)))
    ops_there = [node.op for part in found.parts.values() for node in part.graph]
    assert (ops_there.count("send"), ops_there.count("collective_sum")) == (2, 0)


def test_sum_has_no_edges_between_devices(compiled_sources: Path) -> None:
    for part in compiled(2, on_gpus(2), compiled_sources).parts.values():
        for node in part.graph:
            if node.op == "collective_sum":
                assert all(name in part.graph for name in needed_by(node))
