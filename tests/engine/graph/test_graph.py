"""Names, contexts and errors of graphs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runner.engine.graph import Expr, Graph, LayerStamp, Node, ShapeError, Tensor, TensorSpec, apply, ops
from runner.errors import ResourceError


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
    readers = {tensor: [node.name for node in nodes] for tensor, nodes in graph.consumers().items()}
    assert readers == {x: [square.node, total.node], square: [total.node]}


Formula = Callable[[Expr, Expr], Expr]

FORMULAS: dict[str, tuple[Formula, str]] = {
    "x + y": (lambda x, y: x + y, "add(x, y)"),
    "x - y": (lambda x, y: x - y, "sub(x, y)"),
    "x * y": (lambda x, y: x * y, "mul(x, y)"),
    "x / y": (lambda x, y: x / y, "div(x, y)"),
    "x + 0.5": (lambda x, y: x + 0.5, "fill(0.5) add(x, fill)"),
    "0.5 + x": (lambda x, y: 0.5 + x, "fill(0.5) add(x, fill)"),
    "x - 0.5": (lambda x, y: x - 0.5, "fill(0.5) sub(x, fill)"),
    "0.5 - x": (lambda x, y: 0.5 - x, "fill(0.5) sub(fill, x)"),
    "x * 0.5": (lambda x, y: x * 0.5, "fill(0.5) mul(x, fill)"),
    "0.5 * x": (lambda x, y: 0.5 * x, "fill(0.5) mul(x, fill)"),
    "x / 0.5": (lambda x, y: x / 0.5, "fill(0.5) div(x, fill)"),
    "0.5 / x": (lambda x, y: 0.5 / x, "fill(0.5) div(fill, x)"),
    "x ** 0.5": (lambda x, y: x**0.5, "pow(x, 0.5)"),
    "-x": (lambda x, y: -x, "neg(x)"),
    "abs(x)": (lambda x, y: abs(x), "abs(x)"),
    "exp": (lambda x, y: x.exp(), "exp(x)"),
    "sign": (lambda x, y: x.sign(), "sign(x)"),
    "sqrt": (lambda x, y: x.sqrt(), "sqrt(x)"),
    "square": (lambda x, y: x.square(), "square(x)"),
    "apply": (lambda x, y: apply(ops.maximum, x, y), "maximum(x, y)"),
    "momentum": (
        lambda v, g: 0.9 * v - g * 0.1,
        "fill(0.9) mul(x, fill) fill_1(0.1) mul_1(y, fill_1) sub(mul, mul_1)",
    ),
}


def operands(dtype: str = "float64") -> tuple[Graph, Expr, Expr]:
    graph = Graph()
    x, y = (Expr(graph, ops.placeholder(graph, (2,), dtype, name=name)) for name in "xy")
    return graph, x, y


def described(node: Node) -> str:
    """Return the name of a node with its inputs and its attributes that are floats."""
    numbers = [str(value) for value in node.attributes.values() if isinstance(value, float)]
    return f"{node.name}({', '.join([*(tensor.node for tensor in node.inputs), *numbers])})"


@pytest.mark.parametrize("label", FORMULAS)
def test_formula_adds_the_expected_nodes(label: str) -> None:
    graph, x, y = operands()
    formula, expected = FORMULAS[label]
    result = formula(x, y)
    assert " ".join(map(described, list(graph)[2:])) == expected
    assert result.tensor == list(graph)[-1][0]


def test_numbers_get_the_dtype_of_the_tensor() -> None:
    graph, x, _ = operands("float32")
    assert (2.0 * x).spec == x.spec
    assert graph.spec(graph.nodes["fill"][0]).dtype == "float32"
    assert x.scalar(1.0, "int64").spec.dtype == "int64"


def test_operands_of_different_dtypes_are_refused() -> None:
    _, x, _ = operands()
    with pytest.raises(ShapeError, match=r"op 'add': expected inputs of one dtype, got float64\[2\], float32\[\]"):
        _ = x + x.scalar(1.0, "float32")


@pytest.mark.parametrize("join", [lambda a, b: a + b, lambda a, b: a * 2, lambda a, b: 2 * a])
def test_tensors_without_their_graph_are_not_joined_like_tuples(join: Callable[[Tensor, Tensor], object]) -> None:
    _, x, y = operands()
    with pytest.raises(TypeError, match=r"tensor x:0: \+ and \* expected operands Expr\(graph, tensor\)"):
        join(x.tensor, y.tensor)
