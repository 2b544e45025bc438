"""Operators on tensors: the nodes that each operator adds, in order, and the inputs of these nodes."""

from collections.abc import Callable

import numpy as np
import pytest

from runner.engine.graph import ops
from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor
from tests.oracles import evaluate

Formula = Callable[[Expr, Expr], Expr]

FORMULAS: dict[str, tuple[Formula, str]] = {
    "x + y": (lambda x, y: x + y, "add(x, y)"),
    "x - y": (lambda x, y: x - y, "sub(x, y)"),
    "x * y": (lambda x, y: x * y, "mul(x, y)"),
    "x / y": (lambda x, y: x / y, "div(x, y)"),
    "x + 0.5": (lambda x, y: x + 0.5, "fill() add(x, fill)"),
    "0.5 + x": (lambda x, y: 0.5 + x, "fill() add(x, fill)"),
    "x - 0.5": (lambda x, y: x - 0.5, "fill() sub(x, fill)"),
    "0.5 - x": (lambda x, y: 0.5 - x, "fill() sub(fill, x)"),
    "x * 0.5": (lambda x, y: x * 0.5, "fill() mul(x, fill)"),
    "0.5 * x": (lambda x, y: 0.5 * x, "fill() mul(x, fill)"),
    "x / 0.5": (lambda x, y: x / 0.5, "fill() div(x, fill)"),
    "0.5 / x": (lambda x, y: 0.5 / x, "fill() div(fill, x)"),
    "x ** 0.5": (lambda x, y: x**0.5, "pow(x)"),
    "-x": (lambda x, y: -x, "neg(x)"),
    "abs(x)": (lambda x, y: abs(x), "abs(x)"),
    "exp": (lambda x, y: x.exp(), "exp(x)"),
    "sign": (lambda x, y: x.sign(), "sign(x)"),
    "sqrt": (lambda x, y: x.sqrt(), "sqrt(x)"),
    "square": (lambda x, y: x.square(), "square(x)"),
    "apply": (lambda x, y: apply(ops.maximum, x, y), "maximum(x, y)"),
    "momentum": (lambda v, g: 0.9 * v - g * 0.1, "fill() mul(x, fill) fill_1() mul_1(y, fill_1) sub(mul, mul_1)"),
}


def operands(dtype: str = "float64") -> tuple[Graph, Expr, Expr]:
    graph = Graph()
    x, y = (Expr(graph, ops.placeholder(graph, (2,), dtype, name=name)) for name in "xy")
    return graph, x, y


@pytest.mark.parametrize("label", FORMULAS)
def test_formula_adds_the_expected_nodes(label: str) -> None:
    graph, x, y = operands()
    formula, expected = FORMULAS[label]
    result = formula(x, y)
    added = [f"{node.name}({', '.join(tensor.node for tensor in node.inputs)})" for node in list(graph)[2:]]
    assert " ".join(added) == expected
    assert result.tensor == list(graph)[-1][0]


@pytest.mark.parametrize("label", ["x - 0.5", "0.5 - x", "x / 0.5", "0.5 / x", "x ** 0.5", "momentum"])
def test_value_of_a_formula_equals_numpy(label: str) -> None:
    graph, x, y = operands()
    a, b = np.array([4.0, 0.25]), np.array([2.0, -3.0])
    formula, _ = FORMULAS[label]
    (found,) = evaluate(graph, [formula(x, y).tensor], {x.tensor: a, y.tensor: b})
    expected: np.ndarray = formula(a, b)  # type: ignore[arg-type, assignment]
    np.testing.assert_allclose(found, expected, rtol=1e-15)


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
