"""Names, contexts and errors of graphs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import LayerStamp, Node
from runner.engine.graph.op import ShapeError
from runner.engine.graph.serialize import to_document
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.errors import ResourceError
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.strategies.networks import NETWORKS, workload_of


@pytest.fixture
def graph() -> Graph:
    return Graph()


def test_node_name_is_the_op_or_the_given_name_with_a_counter_if_already_used(graph: Graph) -> None:
    x = ops.placeholder(graph, (2,), "float32", name="x")
    for _ in range(3):
        ops.relu(graph, x)
    ops.relu(graph, x, name="relu_1")
    ops.relu(graph, x, name="top")
    assert list(graph.nodes) == ["x", "relu", "relu_1", "relu_2", "relu_1_1", "top"]


def test_absolute_scope_ignores_the_scopes_around_it(graph: Graph) -> None:
    with graph.name_scope("a"), graph.name_scope("b"):
        ops.placeholder(graph, (), "float32", name="x")
        with graph.absolute_scope("c"):
            ops.placeholder(graph, (), "float32", name="x")
        ops.placeholder(graph, (), "float32", name="y/z")
    ops.placeholder(graph, (), "float32", name="x")
    assert list(graph.nodes) == ["a/b/x", "c/x", "a/b/y/z", "x"]


def test_nested_contexts_set_device_layer_and_control_inputs_of_nodes(graph: Graph) -> None:
    x = ops.placeholder(graph, (2,), "float32", name="x")
    first = ops.relu(graph, x, name="first")
    outer, inner = LayerStamp("fc1", "dense"), LayerStamp("fc2", "dense")
    with graph.device("/task:1"), graph.layer(outer), graph.control_dependencies(["x"]):
        with graph.device("/device:cpu:0"), graph.layer(inner), graph.control_dependencies([first.node, "x"]):
            deep = graph.nodes[ops.relu(graph, x).node]
        shallow = graph.nodes[ops.relu(graph, x).node]
    plain = graph.nodes[ops.relu(graph, x).node]
    assert (deep.device, deep.layer, deep.control_inputs) == ("/device:cpu:0", inner, ("x", "first"))
    assert (shallow.device, shallow.layer, shallow.control_inputs) == ("/task:1", outer, ("x",))
    assert (plain.device, plain.layer, plain.control_inputs) == ("", None, ())


def test_contexts_are_restored_after_an_exception(graph: Graph) -> None:
    x = ops.placeholder(graph, (2,), "float32", name="x")
    with (
        pytest.raises(ShapeError),
        graph.name_scope("a"),
        graph.absolute_scope("b"),
        graph.device("/task:1"),
        graph.layer(LayerStamp("fc1", "dense")),
        graph.control_dependencies(["x"]),
    ):
        ops.reshape(graph, x, (3,))
    node = graph.nodes[ops.relu(graph, x).node]
    assert node == Node("relu", "relu", (x,), {}, (TensorSpec((2,), "float32"),))


def ghost(graph: Graph, **fields: Any) -> Node:
    """Insert a ReLU of x with the given fields replaced."""
    node = Node("r", "relu", (Tensor("x"),), {}, graph.nodes["x"].outputs)
    return graph.insert(replace(node, **fields))


ABSENT = "node 'r' refers to 'ghost', which is not in the graph yet"
ACTS: list[tuple[str, Callable[[Graph, Tensor], object]]] = [
    (r"node 't/matmul': op 'matmul': .*, got .*float32\[2,3\]", lambda graph, x: ops.matmul(graph, x, x)),
    ("node 't/add': op 'add': expected 2 inputs, got 1", lambda graph, x: graph.add("add", [x])),
    ("'t/add_n': op 'add_n': expected at least one input, got none", lambda graph, x: ops.add_n(graph, [])),
    (
        r"op 'reshape': unknown attributes \['to'\], missing .*\['shape'\].*'shape': 'ints'",
        lambda graph, x: graph.add("reshape", [x], {"to": (2,)}),
    ),
    ("attribute shape=2: expected a value of kind 'ints'", lambda graph, x: graph.add("reshape", [x], {"shape": 2})),
    (r"unknown op 'relux'; expected one of abs, add, .*relu, .*variable", lambda graph, x: graph.add("relux")),
    ("node 't/relu': tensor ghost:0 is not in the graph", lambda graph, x: ops.relu(graph, Tensor("ghost"))),
    (r"tensor x:1: node 'x' \(placeholder\) has 1 outputs", lambda graph, x: ops.relu(graph, Tensor("x", 1))),
    ("node 'x' is already in the graph", lambda graph, x: graph.insert(graph.nodes["x"])),
    (ABSENT, lambda graph, x: ghost(graph, inputs=(Tensor("ghost"),))),
    (ABSENT, lambda graph, x: ghost(graph, control_inputs=("ghost",))),
    (ABSENT, lambda graph, x: ghost(graph, colocate_with=("ghost",))),
]


@pytest.mark.parametrize(("message", "act"), ACTS)
def test_node_that_breaks_a_rule_is_named_and_not_added(
    graph: Graph, message: str, act: Callable[[Graph, Tensor], object]
) -> None:
    x = ops.placeholder(graph, (2, 3), "float32", name="x")
    with graph.name_scope("t"), pytest.raises(ShapeError, match=message):
        act(graph, x)
    assert list(graph.nodes) == ["x"]
    with pytest.raises(IndexError, match=r"node 'x' \(placeholder\) has 1 outputs, but no port 1"):
        graph.nodes["x"][1]


def test_output_whose_bytes_exceed_64_bits_is_refused(graph: Graph) -> None:
    ops.placeholder(graph, (2**30, 2**30), "float32", name="large")
    with pytest.raises(ResourceError, match=r"node 'x': its output float32\[1073741824,2147483648\] takes 9,223"):
        ops.placeholder(graph, (2**30, 2**31), "float32", name="x")


@pytest.mark.parametrize("name", ["", "a b", "a:0", "/a", "ä"])
def test_names_with_invalid_characters_are_refused(graph: Graph, name: str) -> None:
    with pytest.raises(ShapeError, match="expected letters, digits and the characters"), graph.name_scope(name):
        ops.placeholder(graph, (), "float32")


def test_consumers_are_listed_once_per_tensor_in_graph_order(graph: Graph) -> None:
    x = ops.placeholder(graph, (2,), "float32", name="x")
    square = ops.mul(graph, x, x)
    total = ops.add(graph, square, x)
    readers = graph.consumers()
    assert {tensor: [node.name for node in nodes] for tensor, nodes in readers.items()} == {
        x: [square.node, total.node],
        square: [total.node],
    }


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_building_the_same_network_twice_gives_identical_documents(network: str) -> None:
    documents = [
        to_document(SyncData(workers=3).build(workload_of(NETWORKS[network], Momentum(), batch_size=7)).graph)
        for _ in range(2)
    ]
    assert documents[0] == documents[1]
