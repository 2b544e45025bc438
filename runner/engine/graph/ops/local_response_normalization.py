"""Local response normalization across channels (Krizhevsky, Sutskever and Hinton 2012, sec. 3.3)."""

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.op import Attributes, Builder, ByDecomposition, OpDef, Specs, expect, register
from runner.engine.graph.ops.common import decomposition, expect_dtype, input_flops, single_output
from runner.engine.graph.tensor import FLOATS, Tensor, TensorSpec


def channel_window_sum(graph: Builder, x: Tensor, *, size: int, name: str | None = None) -> Tensor:
    """Add a node for y[n, c] = sum of x[n, c'] over |c' - c| <= size // 2, where channels beyond the ends are zero.

    x, y: (N, C, ...) float; size is odd, so the window is symmetric and the op is its own adjoint.
    """
    return graph.add("channel_window_sum", [x], {"size": size}, name=name)[0]


class Response(TypedDict):
    """Attributes of the normalization; size is odd.

    The sum of squares is multiplied by alpha, as in the 2012 paper, or, if ``divide_by_size``, by alpha / size, as in
    the released cuda-convnet2 code.
    """

    size: int
    alpha: float
    beta: float
    k: float
    divide_by_size: bool


def local_response_normalization(
    graph: Builder, x: Tensor, *, name: str | None = None, **response: Unpack[Response]
) -> Tensor:
    """Add a node for y = x / (k + a * channel_window_sum(x ** 2)) ** beta.

    x, y: (N, C, ...) float. a is alpha or, if ``divide_by_size``, alpha / size; see :class:`Response`.
    """
    return graph.add("local_response_normalization", [x], response, name=name)[0]


def local_response_normalization_gradient(
    graph: Builder, x: Tensor, dy: Tensor, **response: Unpack[Response]
) -> Tensor:
    """Add a node for dx = dy * d ** -beta - 2 a beta x * channel_window_sum(dy * x * d ** (-beta - 1)).

    Here d = k + a * channel_window_sum(x ** 2), and a is as in :func:`local_response_normalization`.
    """
    return graph.add("local_response_normalization_gradient", [x, dy], response)[0]


def _infer(x: TensorSpec, *, size: int, **others: Any) -> Specs:
    expect_dtype(x, FLOATS)
    expect(x.rank >= 2, "x of shape (N, C, ...)", x)
    expect(size > 0 and size % 2 == 1, "an odd positive size", size)
    return [x]


def _infer_gradient(x: TensorSpec, dy: TensorSpec, **attributes: Any) -> Specs:
    expect(dy == x, f"dy like x, {x}", dy)
    return _infer(x, **attributes)


def _weight(attributes: Attributes) -> float:
    alpha: float = attributes["alpha"]
    return alpha / attributes["size"] if attributes["divide_by_size"] else alpha


def _denominator(x: Expr, attributes: Attributes) -> Expr:
    energy = apply(channel_window_sum, x.square(), size=attributes["size"])
    k: float = attributes["k"]
    return energy * _weight(attributes) + k


@decomposition
def _decompose_gradient(attributes: Attributes, x: Expr, dy: Expr) -> Sequence[Expr]:
    beta: float = attributes["beta"]
    denominator = _denominator(x, attributes)
    direct = dy * denominator**-beta
    through = dy * x * denominator ** (-beta - 1.0)
    summed = apply(channel_window_sum, through, size=attributes["size"])
    return [direct - x * summed * (2.0 * _weight(attributes) * beta)]


_RESPONSE = {"size": "int", "alpha": "float", "beta": "float", "k": "float", "divide_by_size": "bool"}

_NAME = "local_response_normalization"
_GRADIENT = f"{_NAME}_gradient"

register(
    OpDef(
        "channel_window_sum",
        _infer,
        single_output(lambda graph, node, dy: [channel_window_sum(graph, dy, size=node.attributes["size"])]),
        arity=1,
        attributes={"size": "int"},
        flops=lambda inputs, outputs, attributes: int(attributes["size"]) * outputs[0].size,
    ),
    OpDef(
        _NAME,
        _infer,
        single_output(lambda graph, node, dy: [graph.add(_GRADIENT, [*node.inputs, dy], node.attributes)[0]]),
        arity=1,
        attributes=_RESPONSE,
        flops=input_flops(12),
        decompose=decomposition(lambda attributes, x: [x * _denominator(x, attributes) ** -attributes["beta"]]),
    ),
    OpDef(_GRADIENT, _infer_gradient, ByDecomposition(), 2, _RESPONSE, input_flops(24), decompose=_decompose_gradient),
)
