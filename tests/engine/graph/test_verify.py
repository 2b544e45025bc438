"""Each invariant of a legal graph is broken once, and refused."""

from dataclasses import replace
from typing import Any

import pytest

from runner.engine.compile.compile import compile_signature
from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster
from runner.engine.graph.graph import Graph
from runner.engine.graph.serialize import VerificationError, verify
from runner.engine.graph.tensor import Node, Tensor, TensorSpec
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.compile.verified_parts import verify_partition
from tests.engine.running import CPU_0, CPU_1
from tests.strategies.networks import NETWORKS, task_of


@pytest.fixture
def graph() -> Graph:
    """x -> r -> total, and a variable w with its assign."""
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float64", name="x")
    ops.reduce_sum(graph, ops.relu(graph, x, name="r"), axes=(0,), name="total")
    w = ops.variable(graph, (2,), "float64", name="w")
    ops.assign(graph, w, ops.neg(graph, w, name="n"), name="set")
    return graph


def changed(graph: Graph, name: str, /, **fields: Any) -> Graph:
    """The graph with some fields of one node replaced, unchecked."""
    return Graph({key: replace(node, **fields) if key == name else node for key, node in graph.nodes.items()})


def refused(graph: Graph, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(graph)


def test_a_graph_made_by_builders_is_legal(graph: Graph) -> None:
    verify(graph)


def test_every_pass_over_a_training_graph_gives_legal_graphs(registry: Registry) -> None:
    program = SyncData(workers=3).build(task_of(NETWORKS["batch_normalised"], Momentum(), batch_size=7))
    seen: list[str] = []

    def observe(name: str, result: Graph) -> None:
        verify(result)
        seen.append(name)

    for client in program.clients.values():
        compiled = compile_signature(program.graph, client.signature, local_cluster(3), registry, observe)
        verify_partition({device: part.graph for device, part in compiled.parts.items()})
    assert seen[:2] == ["place", "prune"]
    assert seen[-5:-3] == ["transfers", "writes"]
    assert all(name.startswith("split /job:worker/task:") for name in seen[-3:])


def test_node_is_filed_under_its_name(graph: Graph) -> None:
    refused(changed(graph, "r", name="q"), "node 'q' is filed under 'r'")


def test_names_are_of_the_allowed_characters() -> None:
    node = Node("a b", "placeholder", (), {"shape": (), "dtype": "bool"}, (TensorSpec((), "bool"),))
    refused(Graph({"a b": node}), "node name 'a b': expected letters, digits")


def test_inputs_precede_their_node(graph: Graph) -> None:
    reordered = Graph({name: graph.nodes[name] for name in ("r", "x", "total", "w", "n", "set")})
    refused(reordered, "node 'r' depends on 'x', which is not before it")


@pytest.mark.parametrize(
    ("node", "field", "value", "message"),
    [
        ("r", "inputs", (Tensor("x", 1),), "node 'r': tensor x:1: .* has 1 outputs"),
        ("r", "inputs", (Tensor("ghost"),), "node 'r' depends on 'ghost'"),
        ("r", "inputs", (), "node 'r': op 'relu': expected 1 inputs, came 0"),
        ("r", "control_inputs", ("total",), "node 'r' depends on 'total'"),
        ("r", "op", "relux", "node 'r': unknown op 'relux'"),
        ("r", "attributes", {"key": 1}, r"node 'r': op 'relu': unknown attributes \['key'\]"),
        ("total", "attributes", {"axes": (0,)}, r"missing attributes \['keepdims'\]"),
        ("total", "attributes", {"axes": [0], "keepdims": False}, r"node 'total': .*\[0\].* canonical form"),
        ("total", "attributes", {"axes": (1,), "keepdims": False}, "op 'reduce_sum': expected rising axes"),
        (
            "r",
            "outputs",
            (TensorSpec((3,), "float64"),),
            r"'r' claims outputs \['float64\[3\]'\], its op infers .*\[2\]",
        ),
        ("r", "device", "gpu", "node 'r': device 'gpu': expected '/job:NAME"),
        ("r", "colocate_with", ("ghost",), "node 'r' is colocated with 'ghost', which is not"),
        ("set", "inputs", (Tensor("r"), Tensor("n")), "node 'set' assigns to r:0, which is no variable"),
    ],
)
def test_changed_node_is_refused(graph: Graph, node: str, field: str, value: object, message: str) -> None:
    refused(changed(graph, node, **{field: value}), message)


def test_impossible_shape_is_refused_with_its_node() -> None:
    graph = Graph()
    ops.broadcast_to(graph, ops.placeholder(graph, (1,), "float64"), (2,), name="b")
    refused(changed(graph, "b", attributes={"shape": (-1,)}), r"node 'b': .*shape \(-1,\)")


def parts() -> dict[str, Graph]:
    """One transfer from the first device to the second."""
    source, destination = Graph(), Graph()
    with source.device(CPU_0):
        x = ops.placeholder(source, (2,), "float64", name="x")
        ops.send(source, x, key="k", destination=CPU_1, name="send")
    with destination.device(CPU_1):
        ops.recv(destination, key="k", source=CPU_0, shape=(2,), dtype="float64", name="recv")
    return {CPU_0: source, CPU_1: destination}


def refused_parts(broken: dict[str, Graph], message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify_partition(broken)


def test_partition_with_transfers_is_legal() -> None:
    verify_partition(parts())


def test_parts_are_legal_graphs_of_nodes_on_their_own_device() -> None:
    lie = {"outputs": (TensorSpec((3,), "float64"),)}
    refused_parts({**parts(), CPU_0: changed(parts()[CPU_0], "x", **lie)}, "node 'x' claims outputs")
    moved = {**parts(), CPU_1: changed(parts()[CPU_1], "recv", device=CPU_0)}
    refused_parts(moved, f"node 'recv' of '{CPU_0}' stands in the part of '{CPU_1}'")


@pytest.mark.parametrize(
    ("device", "node", "attribute", "value"),
    [
        (CPU_0, "send", "key", "other"),
        (CPU_0, "send", "destination", CPU_0),
        (CPU_1, "recv", "key", "other"),
        (CPU_1, "recv", "source", CPU_1),
    ],
)
def test_a_send_and_its_receive_name_the_same_transfer(device: str, node: str, attribute: str, value: str) -> None:
    part = parts()[device]
    attributes = {**part.nodes[node].attributes, attribute: value}
    broken = {**parts(), device: changed(part, node, attributes=attributes)}
    refused_parts(broken, "transfer .* has (1 sends and 0|0 sends and 1) receives; expected one of each")


def test_a_second_send_of_a_transfer_is_refused() -> None:
    broken = parts()
    with broken[CPU_0].device(CPU_0):
        ops.send(broken[CPU_0], Tensor("x"), key="k", destination=CPU_1)
    refused_parts(broken, f"transfer 'k' from {CPU_0} to {CPU_1} has 2 sends and 1 receives")


def test_send_and_recv_agree_on_the_spec() -> None:
    attributes = {"key": "k", "source": CPU_0, "shape": (3,), "dtype": "float64"}
    fields = {"attributes": attributes, "outputs": (TensorSpec((3,), "float64"),)}
    broken = {**parts(), CPU_1: changed(parts()[CPU_1], "recv", **fields)}
    refused_parts(broken, r"transfer 'k' .*: float64\[2\] is sent, float64\[3\] is expected")
