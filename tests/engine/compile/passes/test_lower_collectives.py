"""Sums by a collective library: all devices use the library or none does, and the order prevents deadlocks."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.engine.compile.compile import Compiled, compile_signature
from runner.engine.compile.passes.lower_collectives import gathered, lower_collectives
from runner.engine.compile.passes.rewriting import Rewrite, Roots
from runner.engine.compile.passes.simplification import remove_dead_code
from runner.engine.compile.program import Signature
from runner.engine.graph import Cluster, Gpus, Graph, Node, ShapeError, Tensor, local_cluster, ops
from runner.engine.graph.verify import verify
from runner.strategies import SyncData
from tests.engine.compile.passes.graph_text import DEVICES, Case, Text, check
from tests.engine.compile.verified_parts import expect_all_end
from tests.gpu.gpus import registry_of
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.strategies.networks import workload_of

GPUS = [f"/job:worker/task:{k}/device:gpu:0" for k in range(3)]
MEMBERS = tuple(DEVICES)


def on_gpus(workers: int, **more: float) -> Cluster:
    """Return a cluster whose workers have one GPU each and use NCCL."""
    return local_cluster(workers, gpus=Gpus(tuple(range(workers))), collectives="nccl", **more)


def parts_on(graph: Graph, devices: Sequence[str]) -> list[Tensor]:
    """Add a placeholder of four float32 numbers on each device; return the placeholders."""
    parts = []
    for k, device in enumerate(devices):
        with graph.device(device):
            parts.append(ops.placeholder(graph, (4,), "float32", name=f"part_{k}"))
    return parts


def summed(graph: Graph, parts: Sequence[Tensor], group: str, devices: Sequence[str] = GPUS) -> list[Tensor]:
    """Add one all-reduce of all parts on each device, as one group of nodes."""
    totals = []
    for k, device in enumerate(devices):
        with graph.device(device):
            totals.append(ops.all_reduce(graph, parts, group=group, rank=k, name=f"{group}_{k}"))
    return totals


def sums(graph: Graph, device: str) -> list[Node]:
    return [node for node in graph if node.op == "collective_sum" and node.device == device]


def inputs(name: str, devices: Sequence[str] = MEMBERS) -> str:
    """Return statements that create one part of a sum on each device."""
    return "".join(f"{name}_{k} = input(4, on='{device}'); " for k, device in enumerate(devices))


def whole(group: str, rank: int, device: str, of: str, size: int = 3) -> str:
    """Return a statement that sums the parts of all devices on one device. of: the prefix of the parts' names."""
    parts = ", ".join(f"{of}_{k}" for k in range(size))
    return f"{group}_{rank} = all_reduce({parts}, group='{group}', rank={rank}, on='{device}'); "


def wholes(group: str, of: str) -> str:
    return "".join(whole(group, rank, device, of) for rank, device in enumerate(MEMBERS))


def library(group: str, of: str, after: str = "") -> str:
    """Return statements that create a library sum on each device. after: name prefix of the sums that run earlier."""
    return "".join(
        f"{group}_{k} = collective_sum({of}_{k}, group='{group}', rank={k}, size=3, on='{device}', "
        f"after='{after and after + str(k)}'); "
        for k, device in enumerate(MEMBERS)
    )


TWO = inputs("p") + inputs("q")
CASES = {
    "each device passes its own part": Case(inputs("p") + wholes("a", "p"), inputs("p") + library("a", "p")),
    "groups have the same order on every device": Case(
        TWO + wholes("a", "p") + wholes("b", "q"), TWO + library("a", "p") + library("b", "q", after="a_")
    ),
    "groups whose nodes alternate": Case(
        TWO
        + "".join(
            whole(group, rank, MEMBERS[rank], {"a": "p", "b": "q"}[group])
            for rank, groups in enumerate(("ab", "ba", "ba"))
            for group in groups
        ),
        TWO + library("b", "q") + library("a", "p", after="b_"),
    ),
    "a sum is a part of a later sum": Case(
        inputs("p") + wholes("a", "p") + wholes("b", "a"),
        inputs("p") + library("a", "p") + library("b", "a", after="a_"),
    ),
    "a device has no sum": Case(inputs("p") + whole("a", 0, "here", "p") + whole("a", 2, "far", "p")),
    "one device adds different parts": Case(
        TWO + "".join(whole("a", rank, device, "pqq"[rank]) for rank, device in enumerate(MEMBERS))
    ),
    "another order of devices": Case(
        inputs("p", ("there", "here", "far"))
        + "".join(whole("a", rank, device, "p") for rank, device in enumerate(("there", "here", "far")))
    ),
    "parts on another device": Case(inputs("p", ["here"] * 3) + wholes("a", "p")),
    "two sums per group and device": Case(inputs("p") + wholes("a", "p") + wholes("a", "p").replace("a_", "again_")),
    "a member is missing": Case(
        inputs("p", MEMBERS[:2]) + "".join(whole("a", rank, MEMBERS[rank], "p", size=2) for rank in range(2))
    ),
}


def lower(graph: Graph, roots: Roots) -> Rewrite:
    return lower_collectives(graph, roots, list(DEVICES.values()))


@pytest.mark.parametrize("name", CASES)
def test_sums_are_lowered_as_the_table_says(name: str) -> None:
    check(CASES[name], lower, same_bits=False)


def test_sum_that_other_devices_wait_for_is_not_dead_code() -> None:
    text = Text.parse(inputs("p") + library("a", "p"))
    kept, _ = remove_dead_code(text.graph, Roots.of(text.names("a_0")))
    assert [node.name for node in kept if node.op == "collective_sum"] == ["a_0", "a_1", "a_2"]


def test_sums_of_a_group_move_to_the_position_of_the_last_one() -> None:
    """Each of two devices has a node before the sum, a node after the sum, and a node independent of the sum."""
    sums_of_two = "".join(
        f"""p_{k} = input(4, on='{device}'); a_{k} = collective_sum(p_{k}, group='a', rank={k}, size=2, on='{device}')
        after_{k} = neg(a_{k}, on='{device}'); beside_{k} = neg(p_{k}, on='{device}')\n"""
        for k, device in enumerate(MEMBERS[:2])
    )
    order = ["p_0", "a_0", "after_0", "beside_0", "p_1", "beside_1", "a_1", "after_1"]
    assert gathered(Text.parse(sums_of_two).graph, order) == [
        *("p_0", "beside_0", "p_1", "beside_1"),
        *("a_0", "a_1", "after_0", "after_1"),
    ]


def test_sums_that_wait_for_each_other_are_refused() -> None:
    text = Text.parse("""p = input(4, on='here'); one = collective_sum(p, group='a', rank=0, size=2, on='here')
    other = collective_sum(one, group='a', rank=1, size=2, on='there')""")
    with pytest.raises(ShapeError, match=r"nodes one: some devices compute these nodes before a sum over all devices"):
        gathered(text.graph, ["one", "p", "other"])


def compiled(workers: int, cluster: Cluster, folder: Path) -> Compiled:
    program = SyncData(workers=workers, combine="all_reduce", bucket_bytes=200).build(workload_of("convolutional"))
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


def test_all_devices_finish_a_training_step(compiled_sources: Path) -> None:
    found = compiled(3, on_gpus(3), compiled_sources)
    expect_all_end(part.graph for part in found.parts.values())


def test_device_sends_an_awaited_tensor_before_it_begins_a_sum(compiled_sources: Path) -> None:
    """The second device computes its part late and, before the sum, needs a tensor from the first device."""
    graph = Graph()
    first, second = parts_on(graph, GPUS[:2])
    with graph.device(GPUS[1]):
        question = ops.neg(graph, second, name="question")
    with graph.device(GPUS[0]):
        answer = ops.exp(graph, question, name="answer")
    with graph.device(GPUS[1]):
        known = ops.abs(graph, answer)
        late = ops.fill(graph, 0.5, (1 << 22,), "float32")
        for _ in range(20):
            late = ops.exp(graph, late)
        late = ops.add(graph, second, ops.slice(graph, late, begin=(0,), size=(4,)))
    totals = summed(graph, [first, late], "g", GPUS[:2])
    signature = Signature((known, *totals), feeds=(first, second))
    cluster = on_gpus(2, latency_s=1e-7)
    found = compile_signature(graph, signature, cluster, registry_of(EmulatedRuntime(compiled_sources)))
    expect_all_end(part.graph for part in found.parts.values())


def test_parts_are_sent_if_there_is_no_library(compiled_sources: Path) -> None:
    cluster = local_cluster(2, gpus=Gpus((0, 1)))
    graphs = [part.graph for part in compiled(2, cluster, compiled_sources).parts.values()]
    assert {node.op for graph in graphs for node in graph} >= {"all_reduce", "send"}
    assert not any(sums(graph, device) for graph in graphs for device in GPUS)


def test_parts_are_sent_if_only_one_device_needs_the_sum(compiled_sources: Path) -> None:
    graph = Graph()
    parts = parts_on(graph, GPUS)
    totals = summed(graph, parts, "g")
    with graph.device(GPUS[0]):
        whole = ops.neg(graph, totals[0])
    signature = Signature((whole,), feeds=tuple(parts))
    found = compile_signature(graph, signature, on_gpus(3), registry_of(EmulatedRuntime(compiled_sources)))
    ops_there = [node.op for part in found.parts.values() for node in part.graph]
    assert (ops_there.count("send"), ops_there.count("collective_sum")) == (2, 0)
