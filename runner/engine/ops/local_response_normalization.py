"""Local response normalisation across channels (Krizhevsky, Sutskever and Hinton 2012, sec. 3.3).

Attributes: size (odd), alpha, beta, k, divide_by_size. The 2012 paper multiplies the sum of squares by
alpha; the released cuda-convnet2 code multiplies it by alpha / size. ``divide_by_size`` chooses the latter.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes, ByDecomposition, OpDef, expect, register
from runner.engine.ops.arithmetic import add, mul, scale, square, sub
from runner.engine.ops.arithmetic import pow as power
from runner.engine.ops.common import expect_dtype, expect_same_dtype, input_flops, scalar, single_output
from runner.engine.tensor import FLOATS, Tensor, TensorSpec


def channel_window_sum(graph: Graph, x: Tensor, *, size: int, name: str | None = None) -> Tensor:
    """Add y[n, c] = sum of x[n, c'] over |c' - c| <= size // 2, channels beyond the ends counting as zero.

    x, y: (N, C, ...) float; size is odd, which makes the op its own adjoint.
    """
    return graph.add("channel_window_sum", [x], {"size": size}, name=name)[0]


def local_response_normalization(
    graph: Graph,
    x: Tensor,
    *,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    divide_by_size: bool,
    name: str | None = None,
) -> Tensor:
    """Add y = x / (k + a * channel_window_sum(x ** 2)) ** beta, a = alpha or alpha / size.

    x, y: (N, C, ...) float.
    """
    attributes = {"size": size, "alpha": alpha, "beta": beta, "k": k, "divide_by_size": divide_by_size}
    return graph.add("local_response_normalization", [x], attributes, name=name)[0]


def local_response_normalization_gradient(
    graph: Graph,
    x: Tensor,
    dy: Tensor,
    *,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    divide_by_size: bool,
    name: str | None = None,
) -> Tensor:
    """Add dx = dy * d ** -beta - 2 a beta x * channel_window_sum(dy * x * d ** (-beta - 1)).

    d = k + a * channel_window_sum(x ** 2) is the denominator of :func:`local_response_normalization`.
    """
    attributes = {"size": size, "alpha": alpha, "beta": beta, "k": k, "divide_by_size": divide_by_size}
    return graph.add("local_response_normalization_gradient", [x, dy], attributes, name=name)[0]


def _expect_window(op: str, x: TensorSpec, size: int) -> None:
    expect_dtype(op, x, FLOATS)
    expect(x.rank >= 2, op, "x of shape (N, C, ...)", x)
    expect(size > 0 and size % 2 == 1, op, "an odd positive size", size)


def _infer_window_sum(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    _expect_window("channel_window_sum", specs[0], attributes["size"])
    return [specs[0]]


def _infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    _expect_window("local_response_normalization", specs[0], attributes["size"])
    return [specs[0]]


def _infer_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    op = "local_response_normalization_gradient"
    x, dy = specs
    _expect_window(op, x, attributes["size"])
    expect_same_dtype(op, specs)
    expect(dy == x, op, f"dy like x, {x}", dy)
    return [x]


def _weight(attributes: Attributes) -> float:
    alpha: float = attributes["alpha"]
    return alpha / attributes["size"] if attributes["divide_by_size"] else alpha


def _denominator(graph: Graph, x: Tensor, attributes: Attributes) -> Tensor:
    energy = channel_window_sum(graph, square(graph, x), size=attributes["size"])
    return add(graph, scale(graph, energy, _weight(attributes)), scalar(graph, attributes["k"], x))


def _decompose(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    (x,) = inputs
    return [mul(graph, x, power(graph, _denominator(graph, x, attributes), -attributes["beta"]))]


def _decompose_gradient(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    x, dy = inputs
    beta = attributes["beta"]
    denominator = _denominator(graph, x, attributes)
    direct = mul(graph, dy, power(graph, denominator, -beta))
    through = mul(graph, mul(graph, dy, x), power(graph, denominator, -beta - 1.0))
    summed = channel_window_sum(graph, through, size=attributes["size"])
    return [sub(graph, direct, scale(graph, mul(graph, x, summed), 2.0 * _weight(attributes) * beta))]


def _window_sum_rule(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [channel_window_sum(graph, dy, size=node.attributes["size"])]


def _rule(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    inputs = [node.inputs[0], dy]
    return [graph.add("local_response_normalization_gradient", inputs, node.attributes)[0]]


def _window_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return int(attributes["size"]) * outputs[0].size


_RESPONSE = {"size": "int", "alpha": "float", "beta": "float", "k": "float", "divide_by_size": "bool"}

register(
    OpDef(
        "channel_window_sum",
        _infer_window_sum,
        single_output(_window_sum_rule),
        1,
        {"size": "int"},
        _window_flops,
    )
)
register(
    OpDef(
        "local_response_normalization",
        _infer,
        single_output(_rule),
        arity=1,
        attributes=_RESPONSE,
        flops=input_flops(12),
        decompose=_decompose,
    )
)
register(
    OpDef(
        "local_response_normalization_gradient",
        _infer_gradient,
        ByDecomposition(),
        arity=2,
        attributes=_RESPONSE,
        flops=input_flops(24),
        decompose=_decompose_gradient,
    )
)
