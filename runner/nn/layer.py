"""Helpers of layers: the scope of a layer, its weights and its bias, and checks of its inputs."""

from collections.abc import Iterator
from contextlib import contextmanager

from runner.engine.graph import Constant, Initializer, NetworkBuilder, ShapeError, Tensor, Variable, ops


@contextmanager
def new_layer(net: NetworkBuilder, name: str, kind: str) -> Iterator[None]:
    """Begin a layer that contains the nodes added inside the block. Raises ValueError if the name is already in use."""
    # Variables are found by name, so two layers of the same name would share weights without an error.
    if name in net.layer_outputs:
        raise ValueError(f"layer {name!r} is added twice; every layer of a network needs a different name")
    with net.layer(name, kind):
        yield


def weights_of(net: NetworkBuilder, shape: tuple[int, ...], initializer: Initializer) -> Tensor:
    """Return the value of a new parameter "weights", cast to the dtype of activations."""
    return in_use(net, net.parameter("weights", shape, initializer, decayed=True))


def in_use(net: NetworkBuilder, parameter: Variable) -> Tensor:
    """Return the value of a parameter, cast to the dtype of activations."""
    return ops.as_dtype(net.graph, parameter.tensor, net.dtype)


def add_bias(net: NetworkBuilder, y: Tensor, initial: float) -> Tensor:
    """Add one bias per channel of y (N, C) or (N, C, H, W)."""
    bias = in_use(net, net.parameter("bias", net.graph.spec(y).shape[1:2], Constant(initial)))
    return ops.add(net.graph, y, per_channel(net, bias, y))


def per_channel(net: NetworkBuilder, vector: Tensor, y: Tensor) -> Tensor:
    """Return a vector (C,) in a shape that broadcasts against y (N, C) or (N, C, H, W)."""
    _, channels, *places = net.graph.spec(y).shape
    return ops.reshape(net.graph, vector, (channels, *(1 for _ in places))) if places else vector


def expect_rank(net: NetworkBuilder, x: Tensor, rank: int, named: str) -> None:
    """Raise ShapeError, which names the layer, unless x has this rank. named: the expected shape, as text."""
    spec = net.graph.spec(x)
    if spec.rank != rank:
        raise ShapeError(f"layer {net.stamp.name!r} ({net.stamp.kind}): expected an input {named}, got {spec}")
