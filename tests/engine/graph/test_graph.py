"""Names, contexts and errors of the graph."""

import pytest

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import ShapeError
from runner.engine.graph.serialize import to_document
from runner.engine.graph.tensor import LayerStamp, Node, Tensor, TensorSpec
from runner.errors import ResourceError
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.strategies.networks import NETWORKS, task_of


@pytest.fixture
def graph() -> Graph:
    return Graph()


def test_names_are_the_op_or_the_given_name_made_unique_by_a_counter(graph: Graph) -> None:
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


def test_nested_contexts_are_stamped_on_nodes(graph: Graph) -> None:
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


def test_an_output_of_more_bytes_than_64_bits_count_is_refused(graph: Graph) -> None:
    ops.placeholder(graph, (2**30, 2**30), "float32", name="large")
    with pytest.raises(ResourceError, match=r"node 'x': its output float32\[1073741824,2147483648\] takes 9,223"):
        ops.placeholder(graph, (2**30, 2**31), "float32", name="x")


def test_a_node_that_breaks_its_rule_is_named_and_not_added(graph: Graph) -> None:
    x = ops.placeholder(graph, (2, 3), "float32", name="x")
    expected = r"node 'tower/matmul': op 'matmul': expected .*, came .*float32\[2,3\]"
    with graph.name_scope("tower"), pytest.raises(ShapeError, match=expected):
        ops.matmul(graph, x, x)
    assert list(graph.nodes) == ["x"]


def test_a_wrong_number_of_inputs_names_node_and_numbers(graph: Graph) -> None:
    x = ops.placeholder(graph, (2,), "float32", name="x")
    with pytest.raises(ShapeError, match="node 'twice': op 'add': expected 2 inputs, came 1"):
        graph.add("add", [x], name="twice")
    with pytest.raises(ShapeError, match="node 'sum': op 'add_n': expected at least one input, came none"):
        ops.add_n(graph, [], name="sum")


def test_wrong_attributes_are_refused_with_those_the_op_takes(graph: Graph) -> None:
    x = ops.placeholder(graph, (2,), "float32", name="x")
    expected = r"node 'r': op 'reshape': unknown attributes \['to'\], missing .*\['shape'\].*'shape': 'ints'"
    with pytest.raises(ShapeError, match=expected):
        graph.add("reshape", [x], {"to": (2,)}, name="r")
    with pytest.raises(ShapeError, match=r"node 'r': op 'reshape': attribute shape=2 is not of kind 'ints'"):
        graph.add("reshape", [x], {"shape": 2}, name="r")


def test_an_unknown_op_is_refused_with_the_list_of_ops(graph: Graph) -> None:
    with pytest.raises(ShapeError, match=r"unknown op 'relux'; the ops are: abs, add, .*relu, .*variable"):
        graph.add("relux")


def test_missing_tensor_is_refused(graph: Graph) -> None:
    x = ops.placeholder(graph, (2,), "float32", name="x")
    with pytest.raises(ShapeError, match=r"node 'r': tensor ghost:0 is not in the graph"):
        ops.relu(graph, Tensor("ghost"), name="r")
    with pytest.raises(ShapeError, match=r"tensor x:1: node 'x' \(placeholder\) has 1 outputs"):
        ops.relu(graph, Tensor("x", 1))
    with pytest.raises(IndexError, match=r"node 'x' \(placeholder\) has 1 outputs, not port 1"):
        graph.nodes[x.node][1]


@pytest.mark.parametrize("name", ["", "a b", "a:0", "/a", "ä"])
def test_names_of_other_characters_are_refused(graph: Graph, name: str) -> None:
    with pytest.raises(ShapeError, match="expected letters, digits and the characters"), graph.name_scope(name):
        ops.placeholder(graph, (), "float32")


def test_insert_refuses_used_names_and_missing_references(graph: Graph) -> None:
    x = ops.placeholder(graph, (2,), "float32", name="x")
    spec = graph.spec(x)
    with pytest.raises(ShapeError, match="node 'x' is already in the graph"):
        graph.insert(graph.nodes["x"])
    for fields in (
        {"inputs": (Tensor("ghost"),)},
        {"inputs": (x,), "control_inputs": ("ghost",)},
        {"inputs": (x,), "colocate_with": ("ghost",)},
    ):
        node = Node(**{"name": "r", "op": "relu", "attributes": {}, "outputs": (spec,), **fields})
        with pytest.raises(ShapeError, match="node 'r' refers to 'ghost', which is not in the graph yet"):
            graph.insert(node)


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
        to_document(SyncData(workers=3).build(task_of(NETWORKS[network], Momentum(), batch_size=7)).graph)
        for _ in range(2)
    ]
    assert documents[0] == documents[1]
