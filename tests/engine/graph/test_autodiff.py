"""Gradients by graph extension: of any tensor, with respect to any tensors, as ordinary nodes."""

from dataclasses import replace

import numpy as np
import pytest

from runner.engine.graph import ops
from runner.engine.graph.autodiff import gradients
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import OPS, ShapeError
from runner.engine.graph.serialize import verify
from runner.engine.graph.tensor import LayerStamp, Tensor, TensorSpec
from tests.engine.compile.passes.graph_text import Text
from tests.oracles import assert_gradients, evaluate
from tests.samples import Array

CPU_1 = "/job:worker/task:1/device:cpu:0"


@pytest.fixture
def graph() -> Graph:
    return Graph()


def _x(graph: Graph, *shape: int, name: str = "x") -> Tensor:
    return ops.placeholder(graph, shape, "float64", name=name)


def _value(graph: Graph, tensor: Tensor | None, feeds: dict[Tensor, Array]) -> list[float]:
    assert tensor is not None
    (value,) = evaluate(graph, [tensor], feeds)
    return value.ravel().tolist()


def test_the_gradient_has_shape_and_dtype_of_its_tensor(graph: Graph) -> None:
    x = ops.placeholder(graph, (2, 3), "float32")
    (dx,) = gradients(graph, [ops.reduce_sum(graph, ops.square(graph, x))], [x])
    assert dx is not None
    assert graph.spec(dx) == TensorSpec((2, 3), "float32")


E = np.e


@pytest.mark.parametrize(
    ("text", "ys", "xs", "x", "expected"),
    [
        # By an intermediate tensor, and by its input at once.
        ("m = exp(x); y = square(m)", "y", "m", [0.0, 1.0], [[2.0, 2 * E]]),
        ("m = square(x); y = square(m)", "y", "m x", [3.0], [[2 * 3.0**2], [4 * 3.0**3]]),
        # Several ys add their gradients, also a y and its input, and the same y twice.
        ("y = square(x); z = exp(x)", "y z", "x", [0.5], [[1.0 + np.exp(0.5)]]),
        ("y = square(x); z = square(y)", "y z", "x", [2.0], [[2 * 2.0 + 4 * 2.0**3]]),
        ("y = square(x)", "y y", "x", [3.0], [[12.0]]),
        # By itself, and by the same x twice.
        ("", "x", "x", [0.0, 0.0], [[1.0, 1.0]]),
        ("y = square(x)", "y", "x x", [3.0], [[6.0], [6.0]]),
        # A tensor that one node uses twice.
        ("y = mul(x, x)", "y", "x", [3.0], [[6.0]]),
    ],
)
def test_gradients_have_the_values_of_calculus(
    text: str, ys: str, xs: str, x: list[float], expected: list[list[float]]
) -> None:
    parsed = Text.parse(f"x = input({len(x)}); {text}", "float64")
    found = gradients(parsed.graph, parsed.names(ys), parsed.names(xs))
    for tensor, value in zip(found, expected, strict=True):
        assert _value(parsed.graph, tensor, {parsed.tensors["x"]: np.array(x)}) == pytest.approx(value)


def test_grad_ys_weight_the_ys(graph: Graph) -> None:
    x, weight = _x(graph, 2), _x(graph, 2, name="weight")
    (dx,) = gradients(graph, [ops.square(graph, x)], [x], [weight])
    feeds = {x: np.array([1.0, 2.0]), weight: np.array([10.0, -1.0])}
    assert _value(graph, dx, feeds) == [20.0, -4.0]


def test_unused_tensor_has_no_gradient(graph: Graph) -> None:
    x, other = _x(graph, 2), _x(graph, 2, name="other")
    y = ops.square(graph, x)
    ops.mul(graph, other, y)
    dx, dother = gradients(graph, [y], [x, other])
    assert dx is not None
    assert dother is None


def test_a_tensor_that_depends_on_y_has_no_gradient(graph: Graph) -> None:
    x = _x(graph, 2)
    later = ops.exp(graph, ops.square(graph, x))
    assert gradients(graph, [x], [later]) == [None]


def test_another_port_of_the_same_node_has_no_gradient(graph: Graph) -> None:
    first, second = ops.split(graph, _x(graph, 4), 0, [2, 2])
    dfirst, dsecond = gradients(graph, [ops.square(graph, second)], [first, second])
    assert dfirst is None
    assert dsecond is not None


def test_a_tensor_used_by_several_nodes(graph: Graph) -> None:
    x = _x(graph, 3)
    y = ops.add(graph, ops.mul(graph, ops.exp(graph, x), ops.tanh(graph, x)), x)
    assert_gradients(graph, [y], [x], {x: np.array([0.1, -0.4, 0.9])}, np.random.default_rng(0), order=2)


def test_third_derivatives(graph: Graph) -> None:
    x = _x(graph, 1)
    derivative = ops.pow(graph, x, 4.0)
    for _ in range(3):
        (found,) = gradients(graph, [derivative], [x])
        assert found is not None
        derivative = found
    assert _value(graph, derivative, {x: np.array([2.0])}) == [4 * 3 * 2 * 2.0]


def test_a_whole_network_to_second_order(graph: Graph) -> None:
    x, w, v = _x(graph, 3, 1, 5, 5), _x(graph, 2, 1, 3, 3, name="w"), _x(graph, 18, 4, name="v")
    hidden = ops.tanh(graph, ops.conv2d(graph, x, w))
    logits = ops.matmul(graph, ops.reshape(graph, hidden, (3, -1)), v)
    labels = ops.constant(graph, np.array([3, 0, 1]))
    loss = ops.reduce_mean(graph, ops.softmax_cross_entropy(graph, logits, labels)[0])
    rng = np.random.default_rng(5)
    feeds = {tensor: rng.standard_normal(graph.spec(tensor).shape) for tensor in (x, w, v)}
    assert_gradients(graph, [loss], [x, w, v], feeds, rng, order=2)


@pytest.mark.parametrize("op", ["batch_norm_gradient", "local_response_normalization_gradient"])
def test_decomposition_separates_two_inputs_of_one_tensor(graph: Graph, op: str) -> None:
    x = _x(graph, 4, 3)
    if op == "batch_norm_gradient":
        vector = ops.exp(graph, ops.reduce_mean(graph, x, [0]))
        y = ops.batch_norm_gradient(graph, x, vector, vector, vector, x, epsilon=0.1)[0]
    else:
        y = ops.local_response_normalization_gradient(
            graph, x, x, size=3, alpha=0.3, beta=0.75, k=1.0, divide_by_size=False
        )
    feeds = {x: np.random.default_rng(1).standard_normal((4, 3))}
    assert_gradients(graph, [y], [x], feeds, np.random.default_rng(2))


def test_gradient_nodes_have_the_device_and_layer_of_their_node(graph: Graph) -> None:
    stamp = LayerStamp("fc1", "dense")
    x, w = _x(graph, 2, 3), _x(graph, 3, 4, name="w")
    with graph.device(CPU_1), graph.layer(stamp), graph.name_scope("fc1"):
        y = ops.relu(graph, ops.matmul(graph, x, w))
    before = set(graph.nodes)
    gradients(graph, [y], [x, w])
    added = [node for node in graph if node.name not in before]
    assert {(node.device, node.layer) for node in added} == {(CPU_1, stamp)}
    assert {node.name for node in added} == {
        "gradients/fc1/relu/ones",
        "gradients/fc1/relu/relu_gradient",
        "gradients/fc1/matmul/matmul",
        "gradients/fc1/matmul/matmul_1",
    }


def test_sum_over_paths_has_the_device_of_the_tensor(graph: Graph) -> None:
    with graph.device(CPU_1), graph.layer(LayerStamp("fc1", "dense")):
        shared = ops.exp(graph, _x(graph, 2))
    y = ops.mul(graph, ops.tanh(graph, shared), ops.square(graph, shared))
    gradients(graph, [y], [shared])
    total = graph.nodes["gradients/exp/sum_0"]
    assert (total.op, total.device, total.layer) == ("add_n", CPU_1, LayerStamp("fc1", "dense"))


def test_decomposed_gradients_have_the_device_and_layer_of_their_node(graph: Graph) -> None:
    x, dy = _x(graph, 2, 5), _x(graph, 2, 5, name="dy")
    with graph.device(CPU_1):
        y = ops.local_response_normalization_gradient(
            graph, x, dy, size=3, alpha=0.3, beta=0.75, k=1.0, divide_by_size=False
        )
    before = set(graph.nodes)
    gradients(graph, [y], [x])
    assert {node.device for node in graph if node.name not in before} == {CPU_1}


def test_second_call_uses_another_scope(graph: Graph) -> None:
    x = _x(graph, 2)
    y = ops.square(graph, x)
    for _ in range(3):
        gradients(graph, [y], [x])
    scopes = {name.split("/")[0] for name in graph.nodes if name.startswith("gradients")}
    assert scopes == {"gradients", "gradients_1", "gradients_2"}


def test_scope_of_the_caller_is_ignored(graph: Graph) -> None:
    x = _x(graph, 2)
    with graph.name_scope("train"):
        gradients(graph, [ops.square(graph, x)], [x], scope="backward")
        ops.exp(graph, x)
    assert "backward/train/square/mul" in graph
    assert "train/exp" in graph


def test_the_extended_graph_is_legal(graph: Graph) -> None:
    x = _x(graph, 2, 4)
    y = ops.local_response_normalization(graph, x, size=3, alpha=0.3, beta=0.75, k=1.0, divide_by_size=True)
    (dx,) = gradients(graph, [y], [x])
    assert dx is not None
    gradients(graph, [dx], [x])
    verify(graph)


def test_the_same_graph_gives_the_same_names() -> None:
    def names() -> list[str]:
        fresh = Graph()
        x = _x(fresh, 2, 4)
        y = ops.softmax(fresh, ops.exp(fresh, x))
        (dx,) = gradients(fresh, [y], [x])
        assert dx is not None
        gradients(fresh, [dx], [x])
        return list(fresh.nodes)

    assert names() == names()


def test_ys_and_grad_ys_must_pair(graph: Graph) -> None:
    x = _x(graph, 2)
    with pytest.raises(ShapeError, match="gradients: 1 ys, but 2 grad_ys"):
        gradients(graph, [x], [x], [x, x])


def test_grad_y_of_another_shape_is_refused(graph: Graph) -> None:
    x = _x(graph, 2)
    y = ops.reduce_sum(graph, x)
    with pytest.raises(ShapeError, match=r"grad_y x:0 is float64\[2\], expected float64\[\] as reduce_sum:0"):
        gradients(graph, [y], [x], [x])


@pytest.mark.parametrize("integer_is_y", [True, False])
def test_only_floats_have_gradients(graph: Graph, integer_is_y: bool) -> None:
    x, labels = _x(graph, 2), ops.placeholder(graph, (2,), "int64", name="labels")
    ys, xs = ([labels], [x]) if integer_is_y else ([x], [labels])
    with pytest.raises(ShapeError, match=r"labels:0 is int64\[2\]; only float tensors have gradients"):
        gradients(graph, ys, xs)


def test_op_without_gradient_on_the_path_is_named_with_its_reason(graph: Graph) -> None:
    w = ops.variable(graph, (2,), "float64", name="w")
    update = ops.assign(graph, w, ops.square(graph, w), name="update")
    with pytest.raises(ShapeError, match=r"no gradient through node 'update' \(op 'assign'\): it commits"):
        gradients(graph, [update], [w])


def test_a_rule_that_gives_the_wrong_shape_is_named(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(OPS["reduce_sum"], gradient=lambda graph, node, totals: totals)
    monkeypatch.setitem(OPS, "reduce_sum", wrong)
    x = _x(graph, 2)
    with pytest.raises(
        ShapeError, match=r"rule of op 'reduce_sum' at node 'reduce_sum' gave float64\[\] for input x:0, which is"
    ):
        gradients(graph, [ops.reduce_sum(graph, x)], [x])


def test_unknown_tensors_are_refused(graph: Graph) -> None:
    x = _x(graph, 2)
    with pytest.raises(ShapeError, match="tensor nowhere:0 is not in the graph"):
        gradients(graph, [x], [Tensor("nowhere")])
