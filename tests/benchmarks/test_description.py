"""Graphs in neutral words."""

from collections.abc import Callable

import pytest

from benchmarks.cases import CASES
from benchmarks.description import describe
from benchmarks.experiments import timed_experiment
from benchmarks.network import forward_layers
from benchmarks.problem import KINDS, Layer
from runner import nn
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.network import NetworkBuilder
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.variables import Variables
from runner.training.build import task_of

IMAGE = (2, 3, 9, 9)


def described(network: Callable[[NetworkBuilder, Tensor], Tensor]) -> dict[str, Layer]:
    """The layers, by name, of a network over two images of 3x9x9."""
    graph = Graph()
    x = ops.placeholder(graph, IMAGE, "float32", name="x")
    step, index = ops.placeholder(graph, (), "int64"), ops.placeholder(graph, IMAGE[:1], "int64")
    variables = Variables(graph, seed=0)
    net = NetworkBuilder(graph, variables, dtype="float32", seed=0, training=True, step=step, index=index)
    return {layer.name: layer for layer in describe(graph, x, network(net, x), net.state_updates)}


def test_a_bias_belongs_to_its_convolution() -> None:
    layers = described(lambda net, x: nn.relu(net, nn.conv(net, x, 4, 3, stride=2, name="conv1"), name="relu1"))
    conv = layers["conv1/conv2d"]
    assert list(layers) == ["conv1/conv2d", "relu1/relu"]
    assert conv.variables == {"weights": "conv1/weights", "bias": "conv1/bias"}
    assert (conv.inputs, conv.shape) == (("x",), (2, 4, 4, 4))
    assert conv.settings == {
        "strides": (2, 2),
        "padding": (0, 0, 0, 0),
        "groups": 1,
        "image": (9, 9),
        "kernel": (3, 3),
    }
    assert layers["relu1/relu"].inputs == ("conv1/conv2d",)


def test_a_bias_belongs_to_its_dense_layer_with_the_flattened_shape() -> None:
    layers = described(lambda net, x: nn.dense(net, nn.flatten(net, x, name="flat"), 5, name="fc"))
    assert layers["fc/matmul"].variables == {"weights": "fc/weights", "bias": "fc/bias"}
    assert layers["fc/matmul"].settings["image"] == list(IMAGE[1:])


def test_layers_without_bias_have_none() -> None:
    layers = described(lambda net, x: nn.conv(net, x, 4, 3, bias=None, name="conv1"))
    assert layers["conv1/conv2d"].variables == {"weights": "conv1/weights"}


def test_uneven_padding_is_described() -> None:
    layers = described(lambda net, x: nn.max_pool(net, x, 2, ceil=True, name="pool"))
    pool = layers["pool/max_pool"]
    assert pool.settings == {"window": (2, 2), "strides": (2, 2), "padding": (0, 1, 0, 1), "image": (9, 9)}
    assert pool.shape == (2, 3, 5, 5)


def test_batch_normalisation_knows_its_moving_averages() -> None:
    norm = described(lambda net, x: nn.batch_norm(net, x, decay=0.75, name="norm"))["norm/batch_norm"]
    assert norm.variables["moving_variance"] == "norm/moving_variance"
    assert norm.variables["gamma"] == "norm/gamma"
    assert norm.settings == {"epsilon": 1e-5, "decay": 0.75}


def test_pooling_of_single_places_is_a_choice_of_places() -> None:
    def network(net: NetworkBuilder, x: Tensor) -> Tensor:
        return ops.avg_pool(net.graph, x, window=(1, 1), strides=(2, 2), name="shortcut")

    shortcut = described(network)["shortcut"]
    assert (shortcut.kind, shortcut.settings) == ("subsample", {"strides": (2, 2)})


def test_a_sum_of_branches_is_no_bias_and_is_the_last_use_of_both() -> None:
    def network(net: NetworkBuilder, x: Tensor) -> Tensor:
        h = nn.relu(net, x, name="relu1")
        return ops.add(net.graph, nn.conv(net, h, 3, 3, padding="same", name="conv1"), h, name="sum")

    layers = described(network)
    assert (layers["sum"].kind, layers["sum"].inputs) == ("add", ("conv1/conv2d", "relu1/relu"))
    assert layers["sum"].last_uses == ("conv1/conv2d", "relu1/relu")
    assert layers["conv1/conv2d"].last_uses == ()
    assert layers["relu1/relu"].last_uses == ("x",)


def test_layers_that_peers_lack_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"node 'squash': op 'tanh' is no layer that peers make; they make add, "):
        described(lambda net, x: net.graph.add("tanh", [x], name="squash")[0])


def test_a_variable_added_to_anything_else_is_refused() -> None:
    def network(net: NetworkBuilder, x: Tensor) -> Tensor:
        h = nn.relu(net, nn.conv(net, x, 4, 3, name="conv1"), name="relu1")
        bias = net.variables["conv1/bias"].tensor
        return ops.add(net.graph, h, ops.reshape(net.graph, bias, (4, 1, 1)), name="late")

    with pytest.raises(ValueError, match="node 'late' adds variable 'conv1/bias' to what is no conv or dense layer"):
        described(network)


def test_a_convolution_that_is_read_without_its_bias_is_refused() -> None:
    def network(net: NetworkBuilder, x: Tensor) -> Tensor:
        nn.conv(net, x, 4, 3, name="conv1")
        bare, bias = Tensor("conv1/conv2d"), ops.reshape(net.graph, net.variables["conv1/bias"].tensor, (4, 1, 1))
        return ops.add(net.graph, ops.add(net.graph, bare, bias, name="late"), bare)

    with pytest.raises(ValueError, match="node 'late' adds variable 'conv1/bias' to what is no conv or dense layer"):
        described(network)


def test_only_dense_layers_may_read_flattened_images() -> None:
    with pytest.raises(ValueError, match="layer 'relu1/relu', 'relu', reads a flattened image; expected a dense layer"):
        described(lambda net, x: nn.relu(net, nn.flatten(net, x, name="flat"), name="relu1"))


@pytest.mark.parametrize("name", CASES)
def test_every_case_can_be_described(name: str) -> None:
    case = CASES[name]
    experiment = timed_experiment(case.overrides(threads=1))
    layers, trainable = forward_layers(task_of(experiment.config, experiment.facts))
    assert layers[-1].shape == (case.batch, case.classes)
    assert {layer.kind for layer in layers} <= set(KINDS)
    named = {variable for layer in layers for variable in layer.variables.values()}
    assert {variable for variable in named if "/moving_" not in variable} == set(trainable)
