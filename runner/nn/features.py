"""Dense layers, embeddings, and layers that flatten, add, multiply or concatenate tensors."""

from collections.abc import Sequence

from runner.engine.graph import Initializer, NetworkBuilder, Normal, ShapeError, Tensor, he_normal, ops
from runner.nn.layer import add_bias, expect_rank, new_layer, weights_of


def dense(
    net: NetworkBuilder,
    x: Tensor,
    units: int,
    *,
    name: str,
    bias: float | None = 0.0,
    initializer: Initializer | None = None,
) -> Tensor:
    """Add a dense layer, which computes x W + b: (N, features) -> (N, units).

    bias: the initial value of b; None for no bias. initializer: of W (features, units); None for He normal.
    """
    with new_layer(net, name, "dense"):
        expect_rank(net, x, 2, "(N, features); flatten images first")
        features = net.graph.spec(x).shape[1]
        weights = weights_of(net, (features, units), initializer or he_normal(features))
        y = ops.matmul(net.graph, x, weights)
        return net.output(y if bias is None else add_bias(net, y, bias))


def embedding(
    net: NetworkBuilder, x: Tensor, entries: int, features: int, *, name: str, initializer: Initializer | None = None
) -> Tensor:
    """Add an embedding, which maps every integer of x to a trained vector: (N, ...) -> (N, ..., features).

    x: int32 or int64 from 0 to entries - 1; another value raises an error when the step runs. initializer: of the
    variable table (entries, features); None for normal numbers with standard deviation 1. Strategies can send and
    update only the rows that a batch looks up (:mod:`runner.engine.graph.rows`).
    """
    with new_layer(net, name, "embedding"):
        table = net.parameter("table", (entries, features), initializer or Normal(1.0), decayed=True)
        return net.output(ops.as_dtype(net.graph, net.lookup(table, x), net.dtype))


def flatten(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add a layer that flattens the features of each example: (N, ...) -> (N, features)."""
    with new_layer(net, name, "shape"):
        examples, *rest = net.graph.spec(x).shape
        return net.output(x if len(rest) == 1 else ops.reshape(net.graph, x, (examples, -1)))


def add(net: NetworkBuilder, x: Tensor, shortcut: Tensor, *, name: str) -> Tensor:
    """Add the sum of x and a shortcut of equal shape and dtype: the end of a residual unit (He et al. 2016, eq. 1)."""
    with new_layer(net, name, "merge"):
        _expect_one_shape(net, x, shortcut)
        return net.output(ops.add(net.graph, x, shortcut))


def multiply(net: NetworkBuilder, x: Tensor, gate: Tensor, *, name: str) -> Tensor:
    """Add the element-wise product of x and a gate of equal shape and dtype (He et al. 2016, section 3.1)."""
    with new_layer(net, name, "merge"):
        _expect_one_shape(net, x, gate)
        return net.output(ops.mul(net.graph, x, gate))


def concat(net: NetworkBuilder, branches: Sequence[Tensor], *, name: str) -> Tensor:
    """Add a layer that concatenates the channels of all branches: (N, C_i, H, W) -> (N, sum of C_i, H, W)."""
    with new_layer(net, name, "merge"):
        return net.output(ops.concat(net.graph, branches, axis=1))


def _expect_one_shape(net: NetworkBuilder, x: Tensor, other: Tensor) -> None:
    left, right = net.graph.spec(x), net.graph.spec(other)
    if left != right:
        name, kind = net.stamp.name, net.stamp.kind
        raise ShapeError(f"layer {name!r} ({kind}): expected two inputs of one shape, got {left} and {right}")
