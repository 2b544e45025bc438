"""Element-wise activation functions, softmax, and dropout."""

from runner.engine.graph import Expr, NetworkBuilder, Tensor, apply, ops
from runner.nn.layer import new_layer


def relu(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add a ReLU, max(x, 0), for x of any shape."""
    with new_layer(net, name, "activation"):
        return net.output(ops.relu(net.graph, x))


def sigmoid(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add the logistic function 1 / (1 + e ** -x), for x of any shape."""
    with new_layer(net, name, "activation"):
        return net.output(ops.sigmoid(net.graph, x))


def tanh(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add the hyperbolic tangent, for x of any shape."""
    with new_layer(net, name, "activation"):
        return net.output(ops.tanh(net.graph, x))


def gelu(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add the exact GELU, x / 2 * (1 + erf(x / sqrt(2))), for x of any shape (Hendrycks and Gimpel 2016, section 2)."""
    with new_layer(net, name, "activation"):
        value = Expr(net.graph, x)
        return net.output((0.5 * value * (1.0 + apply(ops.erf, 0.5**0.5 * value))).tensor)


def softmax(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add e ** x / sum(e ** x) over the last axis of x."""
    with new_layer(net, name, "activation"):
        return net.output(ops.softmax(net.graph, x))


def scale(net: NetworkBuilder, x: Tensor, factor: float, *, name: str, offset: float = 0.0) -> Tensor:
    """Add factor * x + offset with fixed numbers, for x of any shape."""
    with new_layer(net, name, "activation"):
        y = factor * Expr(net.graph, x)
        return net.output((y + offset if offset else y).tensor)


def dropout(net: NetworkBuilder, x: Tensor, rate: float, *, name: str) -> Tensor:
    """Add dropout: each value of x (N, ...) is set to 0 with probability ``rate`` and otherwise divided by 1 - rate.

    In evaluation the result is x, which is the expected value of the result in training (Srivastava et al. 2014,
    section 10, in the inverted form). The draws are a function of seed, layer name, step and global example index.
    """
    with new_layer(net, name, "regularizer"):
        if not net.training or rate == 0.0:
            return net.output(x)
        mask = ops.dropout_mask(
            net.graph,
            net.step,
            net.index,
            shape=net.graph.spec(x).shape,
            dtype=net.dtype,
            rate=rate,
            seed=net.seed,
            key=name,
        )
        return net.output(ops.mul(net.graph, x, mask))
