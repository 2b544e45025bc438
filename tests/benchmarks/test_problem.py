"""Benchmark problems on disk: their library-neutral layers compute the same function as the network."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cases import CASES, Case
from benchmarks.description import describe
from benchmarks.experiments import feeds, fixed_batch, opened, prepare, timed_experiment
from benchmarks.network import forward_layers
from benchmarks.peers.arrays import TO_NHWC, channels_last, places
from benchmarks.problem import KINDS, Array, Layer, Problem, load_problem, unsupported
from runner import nn
from runner.engine.graph import Graph, NetworkBuilder, Tensor, Variables, ops
from runner.errors import ConfigError
from runner.training.build import workload_of
from tests.oracles import evaluate

IMAGE = (2, 3, 9, 9)


def described(network: Callable[[NetworkBuilder, Tensor], Tensor]) -> dict[str, Layer]:
    """Return the layers, by name, of a network over two images of shape (3, 9, 9)."""
    graph = Graph()
    x = ops.placeholder(graph, IMAGE, "float32", name="x")
    step, index = ops.placeholder(graph, (), "int64"), ops.placeholder(graph, IMAGE[:1], "int64")
    variables = Variables(graph, seed=0)
    net = NetworkBuilder(graph, variables, dtype="float32", seed=0, training=True, step=step, index=index)
    return {layer.name: layer for layer in describe(graph, x, network(net, x), net.state_updates)}


def biased(name: str) -> dict[str, str]:
    return {"weights": f"{name}/weights", "bias": f"{name}/bias"}


POOLED = {"window": (2, 2), "strides": (2, 2), "image": (9, 9)}
MOVING = {role: f"l/{role}" for role in ("gamma", "beta", "moving_mean", "moving_variance")}
DESCRIBED: dict[str, tuple[Callable[[NetworkBuilder, Tensor], Tensor], Layer]] = {
    "a convolution with its bias": (
        lambda net, x: nn.relu(net, nn.conv(net, x, 4, 3, stride=2, name="l"), name="relu1"),
        Layer(
            "l/conv2d",
            "conv",
            ("x",),
            (2, 4, 4, 4),
            biased("l"),
            {"strides": (2, 2), "padding": (0, 0, 0, 0), "groups": 1, "image": (9, 9), "kernel": (3, 3)},
            ("x",),
        ),
    ),
    "a dense layer, and the shape of its flattened image": (
        lambda net, x: nn.dense(net, nn.flatten(net, x, name="flat"), 5, name="l"),
        Layer("l/matmul", "dense", ("flat/reshape",), (2, 5), biased("l"), {"image": [3, 9, 9]}, ("flat/reshape",)),
    ),
    "a layer without bias": (
        lambda net, x: nn.dense(net, nn.flatten(net, x, name="flat"), 5, bias=None, name="l"),
        Layer(
            "l/matmul",
            "dense",
            ("flat/reshape",),
            (2, 5),
            {"weights": "l/weights"},
            {"image": [3, 9, 9]},
            ("flat/reshape",),
        ),
    ),
    "uneven padding": (
        lambda net, x: nn.max_pool(net, x, 2, ceil=True, name="l"),
        Layer("l/max_pool", "max_pool", ("x",), (2, 3, 5, 5), {}, {**POOLED, "padding": (0, 1, 0, 1)}, ("x",)),
    ),
    "the moving averages of batch normalization": (
        lambda net, x: nn.batch_norm(net, x, decay=0.75, name="l"),
        Layer("l/batch_norm", "batch_norm", ("x",), IMAGE, MOVING, {"epsilon": 1e-5, "decay": 0.75}, ("x",)),
    ),
    "pooling of 1x1, which is subsampling": (
        lambda net, x: ops.avg_pool(net.graph, x, window=(1, 1), strides=(2, 2), name="l"),
        Layer("l", "subsample", ("x",), (2, 3, 5, 5), {}, {"strides": (2, 2)}, ("x",)),
    ),
}


@pytest.mark.parametrize("label", DESCRIBED)
def test_a_layer_is_described(label: str) -> None:
    network, expected = DESCRIBED[label]
    assert described(network)[expected.name] == expected


def test_a_sum_of_branches_is_not_a_bias_and_is_the_last_use_of_both() -> None:
    def network(net: NetworkBuilder, x: Tensor) -> Tensor:
        h = nn.relu(net, x, name="relu1")
        return ops.add(net.graph, nn.conv(net, h, 3, 3, padding="same", name="conv1"), h, name="sum")

    layers = described(network)
    assert (layers["sum"].kind, layers["sum"].inputs) == ("add", ("conv1/conv2d", "relu1/relu"))
    assert layers["sum"].last_uses == ("conv1/conv2d", "relu1/relu")
    assert layers["conv1/conv2d"].last_uses == ()
    assert layers["relu1/relu"].last_uses == ("x",)


def late_bias(net: NetworkBuilder, x: Tensor) -> Tensor:
    h = nn.relu(net, nn.conv(net, x, 4, 3, name="conv1"), name="relu1")
    bias = net.variables["conv1/bias"].tensor
    return ops.add(net.graph, h, ops.reshape(net.graph, bias, (4, 1, 1)), name="late")


def convolution_read_without_its_bias(net: NetworkBuilder, x: Tensor) -> Tensor:
    nn.conv(net, x, 4, 3, name="conv1")
    bare, bias = Tensor("conv1/conv2d"), ops.reshape(net.graph, net.variables["conv1/bias"].tensor, (4, 1, 1))
    return ops.add(net.graph, ops.add(net.graph, bare, bias, name="late"), bare)


NO_BIAS = "node 'late' adds 'conv1/bias'; expected an add that alone reads the output of a conv or dense layer"


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        (
            lambda net, x: net.graph.add("tanh", [x], name="squash")[0],
            "node 'squash': op 'tanh' is not supported in a problem",
        ),
        (lambda net, x: nn.conv(net, x, 4, 3, name="wide", dilation=2), r"node 'wide/conv2d' has dilations \(2, 2\)"),
        (late_bias, NO_BIAS),
        (convolution_read_without_its_bias, NO_BIAS),
        (
            lambda net, x: nn.relu(net, nn.flatten(net, x, name="flat"), name="relu1"),
            "layer 'relu1/relu' of kind 'relu' reads a flattened image; expected a dense layer",
        ),
    ],
)
def test_layers_that_peers_do_not_support_are_refused_by_name(
    network: Callable[[NetworkBuilder, Tensor], Tensor], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        described(network)


DEEP = ("resnet110", "resnet1001")
"""Cases with the layers of resnet20."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in DEEP else []) for n in CASES])
def test_every_case_can_be_described(name: str) -> None:
    case = CASES[name]
    experiment = timed_experiment(case.overrides(threads=1))
    layers, trainable = forward_layers(workload_of(experiment.config, experiment.facts))
    assert layers[-1].shape == (case.batch, case.classes)
    assert {layer.kind for layer in layers} <= set(KINDS)
    named = {variable for layer in layers for variable in layer.variables.values()}
    assert {variable for variable in named if "/moving_" not in variable} == set(trainable)


def test_filters_have_their_spatial_axes_first() -> None:
    layer = Layer("conv1", "conv", ("x",), (1, 4, 2, 2), {"weights": "w", "bias": "b"})
    filters = np.arange(4 * 3 * 2 * 5).reshape(4, 3, 2, 5)
    turned = channels_last(layer, "weights", filters)
    assert turned.shape == (2, 5, 3, 4)
    assert turned[1, 4, 2, 3] == filters[3, 2, 1, 4]
    assert turned.flags.c_contiguous
    assert channels_last(layer, "bias", filters[:, 0, 0, 0]) is not None


def test_a_dense_layer_after_a_flattened_image_computes_the_same_in_nhwc() -> None:
    random = np.random.default_rng(0)
    x, weights = random.standard_normal((2, 3, 4, 5)), random.standard_normal((60, 7))
    layer = Layer("fc", "dense", ("flat",), (2, 7), {"weights": "w"}, {"image": [3, 4, 5]})
    turned = channels_last(layer, "weights", weights)
    flat = x.transpose(TO_NHWC).reshape(2, -1)
    np.testing.assert_allclose(flat @ turned, x.reshape(2, -1) @ weights, rtol=1e-12)


def test_weights_of_other_dense_layers_are_not_reordered() -> None:
    values = np.ones((60, 7))
    dense = Layer("fc", "dense", ("relu",), (2, 7), {"weights": "w"}, {"image": None})
    assert channels_last(dense, "weights", values) is values


def test_places_counts_pixels_inside_the_image() -> None:
    settings = {"window": [3, 2], "strides": [2, 2], "padding": [1, 0, 0, 1], "image": [4, 3], "count_padding": False}
    layer = Layer("pool", "avg_pool", ("x",), (1, 1, 2, 2), {}, settings)
    np.testing.assert_array_equal(places(layer), [[4, 2], [6, 3]])
    counted = Layer("pool", "avg_pool", ("x",), (1, 1, 2, 2), {}, {**settings, "count_padding": True})
    np.testing.assert_array_equal(places(counted), [[6, 6], [6, 6]])


def forward_loss(problem: Problem) -> float:
    """Return the mean loss on the problem's batch with the initial weights, computed only from the problem's files."""
    graph, feeds = Graph(), dict[Tensor, Array]()

    def fed(name: str, value: Array) -> Tensor:
        tensor = ops.placeholder(graph, value.shape, value.dtype.name, name=name)
        feeds[tensor] = value
        return tensor

    values = {"x": fed("x", problem.x)}
    for layer in problem.layers:
        held = {role: fed(f"fed/{name}", problem.variable(name)) for role, name in layer.variables.items()}
        values[layer.name] = LAYERS[layer.kind](graph, layer, [values[name] for name in layer.inputs], held)
    losses = ops.softmax_cross_entropy(graph, values[problem.layers[-1].name], fed("y", problem.y))[0]
    return float(evaluate(graph, [ops.reduce_mean(graph, losses, axes=(0,))], feeds)[0])


Held = Mapping[str, Tensor]


def _conv(graph: Graph, layer: Layer, inputs: list[Tensor], held: Held) -> Tensor:
    geometry = {name: layer.settings[name] for name in ("strides", "padding", "groups")}
    y = ops.conv2d(graph, inputs[0], held["weights"], **geometry)
    return ops.add(graph, y, ops.reshape(graph, held["bias"], (-1, 1, 1))) if "bias" in held else y


def _dense(graph: Graph, layer: Layer, inputs: list[Tensor], held: Held) -> Tensor:
    y = ops.matmul(graph, inputs[0], held["weights"])
    return ops.add(graph, y, held["bias"]) if "bias" in held else y


def _batch_norm(graph: Graph, layer: Layer, inputs: list[Tensor], held: Held) -> Tensor:
    return ops.batch_norm(graph, inputs[0], held["gamma"], held["beta"], epsilon=layer.settings["epsilon"])[0]


def _max_pool(graph: Graph, layer: Layer, inputs: list[Tensor], held: Held) -> Tensor:
    geometry = {name: layer.settings[name] for name in ("window", "strides", "padding")}
    return ops.max_pool(graph, inputs[0], **geometry)[0]


LAYERS: Mapping[str, Callable[[Graph, Layer, list[Tensor], Held], Tensor]] = {
    "conv": _conv,
    "dense": _dense,
    "batch_norm": _batch_norm,
    "max_pool": _max_pool,
    "relu": lambda graph, layer, inputs, held: ops.relu(graph, inputs[0]),
    "flatten": lambda graph, layer, inputs, held: ops.reshape(graph, inputs[0], layer.shape),
    "add": lambda graph, layer, inputs, held: ops.add(graph, *inputs),
    "concat": lambda graph, layer, inputs, held: ops.concat(graph, inputs, **layer.settings),
    "pad": lambda graph, layer, inputs, held: ops.pad(graph, inputs[0], **layer.settings),
    "global_avg_pool": lambda graph, layer, inputs, held: ops.reduce_mean(graph, inputs[0], axes=(2, 3)),
    "subsample": lambda graph, layer, inputs, held: ops.avg_pool(
        graph, inputs[0], window=(1, 1), strides=layer.settings["strides"]
    ),
}


SMALL = {
    "lenet": CASES["smoke"],
    "convnet": Case(
        "convnet",
        ("model=cifar_convnet", "model.widths=[2,3]", "model.units=4", "model.dropout=0"),
        shape=(3, 8, 8),
        classes=4,
        batch=4,
        turn=1,
    ),
    "resnet": Case("resnet", ("model=resnet_cifar", "model.depth=8"), shape=(3, 8, 8), classes=4, batch=2, turn=1),
}


def test_a_written_problem_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.config.devices.bfloat16_flags", lambda: ["avx512_bf16"])  # on any CPU: nothing is run
    written = prepare(CASES["smoke"].overrides(threads=1, precision="bfloat16"), tmp_path)
    read = load_problem(tmp_path)
    plain = {field.name for field in dataclasses.fields(read)} - {"layers", "folder"}
    assert {name: getattr(read, name) for name in plain} == {name: getattr(written, name) for name in plain}
    assert (read.precision, read.threads, read.momentum, read.learning_rate) == ("bfloat16", 1, 0.9, 0.001)
    assert [(layer.name, layer.inputs, layer.shape) for layer in read.layers] == [
        (layer.name, layer.inputs, layer.shape) for layer in written.layers
    ]
    assert "precision=bfloat16" in read.overrides
    assert read.variable("conv1/weights").shape == (2, 1, 5, 5)
    assert (read.x.shape, read.x.dtype, read.y.shape) == ((4, 1, 16, 16), np.float32, (4,))


def test_a_problem_with_another_optimizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected optimizer=momentum, which all libraries have"):
        prepare([*CASES["smoke"].overrides(threads=1)[:-4], "optimizer=sgd"], tmp_path)


def test_every_trainable_variable_and_moving_average_has_a_value(tmp_path: Path) -> None:
    problem = prepare(SMALL["convnet"].overrides(threads=1), tmp_path)
    named = {name for layer in problem.layers for name in layer.variables.values()}
    assert {*problem.trainable, *problem.moving} == named
    assert all(problem.variable(name).dtype == np.float32 for name in named)


@pytest.mark.parametrize("name", SMALL)
def test_the_layers_compute_the_same_as_the_network(name: str, tmp_path: Path) -> None:
    problem = prepare(SMALL[name].overrides(threads=1), tmp_path)
    experiment = timed_experiment(problem.overrides)
    with opened(experiment, fixed_batch(experiment, problem.x, problem.y)) as session:
        fed = feeds(experiment, experiment.program.clients["forward"], step=0)
        ours = float(session.run("forward", feeds=fed)["loss"])
    assert forward_loss(problem) == pytest.approx(ours, rel=1e-5)


def test_a_layer_that_a_subject_does_not_support_is_named() -> None:
    error = unsupported(Layer("norm1", "lrn", ("x",), (1, 2)), "the peer", ("conv", "relu"))
    assert str(error) == "layer 'norm1' is of kind 'lrn', which the peer does not support; expected one of conv, relu"
