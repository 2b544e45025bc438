"""Gradients of any tensors with respect to any tensors, added to the graph as ordinary nodes."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from runner.engine.graph import OPS, Graph, LayerStamp, Node, ShapeError, Tensor, TensorSpec, gradients, ops
from runner.engine.graph.verify import verify
from tests.engine.compile.passes.graph_text import THERE, Text
from tests.oracles import assert_gradients, evaluate

E = np.e
RESPONSE = "size=3, alpha=0.3, beta=0.75, k=1.0, divide_by_size=False"
LRN_GRADIENT = f"local_response_normalization_gradient({{}}, {RESPONSE})"


def values(text: Text, found: list[Tensor | None], x: list[float]) -> list[list[float]]:
    """Compute gradients at ``x`` and return each as a flat list."""
    tensors = [tensor for tensor in found if tensor is not None]
    assert len(tensors) == len(found)
    return [value.ravel().tolist() for value in evaluate(text.graph, tensors, {text.tensors["x"]: np.array(x)})]


@pytest.mark.parametrize(
    ("text", "ys", "xs", "x", "expected"),
    [
        # Gradients with respect to an intermediate tensor, alone and together with the input.
        ("m = exp(x); y = square(m)", "y", "m", [0.0, 1.0], [[2.0, 2 * E]]),
        ("m = square(x); y = square(m)", "y", "m x", [3.0], [[2 * 3.0**2], [4 * 3.0**3]]),
        # The gradients of several ys are added, even if one y depends on another or is listed twice.
        ("y = square(x); z = exp(x)", "y z", "x", [0.5], [[1.0 + np.exp(0.5)]]),
        ("y = square(x); z = square(y)", "y z", "x", [2.0], [[2 * 2.0 + 4 * 2.0**3]]),
        ("y = square(x)", "y y", "x", [3.0], [[12.0]]),
        # Gradients with respect to y itself, and twice with respect to the same x.
        ("", "x", "x", [0.0, 0.0], [[1.0, 1.0]]),
        ("y = square(x)", "y", "x x", [3.0], [[6.0], [6.0]]),
        # The gradient with respect to a tensor that one node reads twice.
        ("y = mul(x, x)", "y", "x", [3.0], [[6.0]]),
    ],
)
def test_gradients_have_the_values_of_calculus(
    text: str, ys: str, xs: str, x: list[float], expected: list[list[float]]
) -> None:
    parsed = Text.parse(f"x = input({len(x)}); {text}", "float64")
    found = values(parsed, gradients(parsed.graph, parsed.names(ys), parsed.names(xs)), x)
    assert found == [pytest.approx(each) for each in expected]


def test_grad_ys_are_weights_of_the_ys() -> None:
    text = Text.parse("x = input(2); y = square(x); weight = exp(x)", "float64")
    found = gradients(text.graph, text.names("y"), text.names("x"), text.names("weight"))
    assert values(text, found, [0.0, 1.0]) == [pytest.approx([0.0, 2 * E])]


@pytest.mark.parametrize(
    ("text", "y", "xs", "missing"),
    [
        ("other = input(4); y = square(x); m = mul(other, y)", "y", "x other", "other"),
        ("y = square(x); later = exp(y)", "x", "later", "later"),
        ("low, high = split(x, axis=0, sizes=(2, 2)); y = square(high)", "y", "low high", "low"),
        ("low, high = split(x, axis=0, sizes=(2, 2)); y = truncate_to_bfloat16(high)", "y", "low", "low"),
    ],
    ids=["an unused tensor", "a tensor that depends on y", "another output of the same node", "a rounded output"],
)
def test_tensor_that_y_does_not_depend_on_has_no_gradient(text: str, y: str, xs: str, missing: str) -> None:
    parsed = Text.parse(f"x = input(4); {text}")
    found = gradients(parsed.graph, parsed.names(y), parsed.names(xs))
    assert [name for name, dx in zip(xs.split(), found, strict=True) if dx is None] == [missing]


def test_third_derivative_has_its_exact_value() -> None:
    text = Text.parse("x = input(1); y = pow(x, exponent=4.0)", "float64")
    (x, derivative) = text.names("x y")
    for _ in range(3):
        (found,) = gradients(text.graph, [derivative], [x])
        assert found is not None
        derivative = found
    assert values(text, [derivative], [2.0]) == [[4 * 3 * 2 * 2.0]]


@pytest.mark.parametrize(
    ("text", "y", "xs", "order"),
    [
        ("x = input(3); e = exp(x); t = tanh(x); m = mul(e, t); y = add(m, x)", "y", "x", 2),
        (
            """x = input(3, 1, 5, 5); w = input(2, 1, 3, 3); v = input(18, 4); c = conv2d(x, w); h = tanh(c)
            flat = reshape(h, shape=(3, 18)); logits = matmul(flat, v)
            labels = fill(value=3.0, shape=(3,), dtype='int64'); losses, p = softmax_cross_entropy(logits, labels)
            y = reduce_mean(losses, axes=(0,))""",
            "y",
            "x w v",
            2,
        ),
        # One tensor is passed as two inputs; the decomposition keeps the gradients of the two inputs apart.
        (
            """x = input(4, 3); m = reduce_mean(x, axes=(0,)); e = exp(m)
            y, dgamma, dbeta = batch_norm_gradient(x, e, e, e, x, epsilon=0.1)""",
            "y",
            "x",
            1,
        ),
        (f"x = input(4, 3); y = {LRN_GRADIENT.format('x, x')}", "y", "x", 1),
    ],
    ids=["a tensor used by several nodes", "a network", "batch_norm_gradient", "local_response_normalization_gradient"],
)
def test_gradients_of_a_graph_agree_with_differences(text: str, y: str, xs: str, order: int) -> None:
    parsed, rng = Text.parse(text, "float64"), np.random.default_rng(5)
    inputs = parsed.names(xs)
    feeds = {tensor: rng.standard_normal(parsed.graph.spec(tensor).shape) for tensor in inputs}
    assert_gradients(parsed.graph, parsed.names(y), inputs, feeds, rng, order=order)


def test_gradient_nodes_have_the_device_and_layer_of_the_forward_node() -> None:
    text = Text.parse(
        """x = input(2, 3); w = input(3, 4); fc1__matmul = matmul(x, w, on='there', layer='fc1')
        fc1__relu = relu(fc1__matmul, on='there', layer='fc1')"""
    )
    before = set(text.graph.nodes)
    gradients(text.graph, text.names("fc1/relu"), text.names("x w"))
    added = [node for node in text.graph if node.name not in before]
    assert {(node.device, node.layer) for node in added} == {(THERE, LayerStamp("fc1", "any"))}
    names = ("relu/ones", "relu/relu_gradient", "matmul/matmul", "matmul/matmul_1")
    assert {node.name for node in added} == {f"gradients/fc1/{name}" for name in names}


def test_sum_over_paths_has_the_device_and_layer_of_the_tensor() -> None:
    text = Text.parse(
        "x = input(2); e = exp(x, on='there', layer='fc1'); t = tanh(e); s = square(e); y = mul(t, s)", "float64"
    )
    gradients(text.graph, text.names("y"), text.names("e"))
    total = text.graph.nodes["gradients/e/sum_0"]
    assert (total.op, total.device, total.layer) == ("add_n", THERE, LayerStamp("fc1", "any"))


def test_decomposed_gradients_have_the_device_of_the_forward_node_and_leave_a_legal_graph() -> None:
    text = Text.parse(f"x = input(2, 5); dy = input(2, 5); y = {LRN_GRADIENT.format('x, dy')[:-1]}, on='there')")
    before = set(text.graph.nodes)
    gradients(text.graph, text.names("y"), text.names("x"))
    assert {node.device for node in text.graph if node.name not in before} == {THERE}
    verify(text.graph)


def test_gradients_walk_only_through_nodes_that_the_ys_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the gradients of n replicas would take time in proportion to n squared."""
    text = Text.parse("x = input(2); other = exp(x); y = square(x); z = mul(y, x); more = exp(y)", "float64")
    visited: list[str] = []
    spec = Graph.spec

    def seen(graph: Graph, tensor: Tensor) -> TensorSpec:
        visited.append(tensor.node)
        return spec(graph, tensor)

    def walked(graph: Graph) -> Iterator[Node]:
        raise AssertionError("all nodes of the graph were visited")

    monkeypatch.setattr(Graph, "spec", seen)
    monkeypatch.setattr(Graph, "__iter__", walked)
    found = gradients(text.graph, text.names("z"), text.names("x"), scope="replica/gradients")
    monkeypatch.undo()
    assert not {tensor.node for tensor in text.names("other more")} & set(visited)
    assert values(text, found, [1.0, 2.0]) == [pytest.approx([3.0, 12.0])]


def test_each_call_uses_a_new_scope_outside_the_scope_of_the_caller() -> None:
    text = Text.parse("x = input(2); y = square(x)")
    graph, (x, y) = text.graph, text.names("x y")
    for _ in range(3):
        gradients(graph, [y], [x])
    scopes = {name.split("/")[0] for name in graph.nodes if name.startswith("gradients")}
    assert scopes == {"gradients", "gradients_1", "gradients_2"}
    with graph.name_scope("train"):
        gradients(graph, [y], [x], scope="backward")
        ops.exp(graph, x)
    assert "backward/y/mul" in graph
    assert "train/exp" in graph


@pytest.mark.parametrize(
    ("text", "ys", "xs", "grad_ys", "message"),
    [
        ("", "x", "x", "x x", "gradients: 1 ys, but 2 grad_ys"),
        ("y = reduce_sum(x, axes=(0,))", "y", "x", "x", r"grad_y x:0 is float64\[2\], expected float64\[\] as y:0"),
        ("i = input(2, dtype='int64')", "i", "x", "", r"i:0 is int64\[2\]; only float tensors have gradients"),
        ("i = input(2, dtype='int64')", "x", "i", "", r"i:0 is int64\[2\]; only float tensors have gradients"),
        (
            "w = weights(2); update = assign(w, x)",
            "update",
            "w",
            "",
            r"no gradient through node 'update' \(op 'assign'\): it commits a value",
        ),
        (
            "t = truncate_to_bfloat16(f); y = cast(t, dtype='float32')",
            "y",
            "f",
            "",
            "passes add this op before transfers, after differentiation",
        ),
    ],
)
def test_gradient_that_does_not_exist_is_refused(text: str, ys: str, xs: str, grad_ys: str, message: str) -> None:
    parsed = Text.parse(f"x = input(2); f = input(2, dtype='float32'); {text}", "float64")
    given = parsed.names(grad_ys) or None
    with pytest.raises(ShapeError, match=message):
        gradients(parsed.graph, parsed.names(ys), parsed.names(xs), given)


def test_unknown_tensor_is_refused() -> None:
    text = Text.parse("x = input(2)")
    with pytest.raises(ShapeError, match="tensor nowhere:0 is not in the graph"):
        gradients(text.graph, text.names("x"), [Tensor("nowhere")])


def test_error_names_the_gradient_rule_that_returns_a_wrong_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "reduce_sum", replace(OPS["reduce_sum"], gradient=lambda graph, node, totals: totals))
    text = Text.parse("x = input(2); y = reduce_sum(x, axes=(0,))", "float64")
    expected = r"rule of op 'reduce_sum' at node 'y' gave float64\[\] for input x:0, expected"
    with pytest.raises(ShapeError, match=expected):
        gradients(text.graph, text.names("y"), text.names("x"))
