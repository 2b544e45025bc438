"""Recomputation of activations: the copied nodes, the positions of the copies, and the nodes that read the copies."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from runner import nn
from runner.engine.compile.compile import Compiled
from runner.engine.compile.passes.recomputation import recompute_activations
from runner.engine.graph import Graph, LayerStamp, Node, Tensor, gradients, ops
from runner.engine.graph.network import NetworkBuilder, NetworkFunction, Outputs
from runner.engine.graph.verify import verify
from runner.optimizers import Momentum
from runner.strategies import ModelParallel, Single, Strategy
from runner.tasks.classification import Classification
from tests.strategies.networks import CLASSES, NETWORKS, Batch, workload_of
from tests.strategies.training import Placed, compiled

COPY = "/recomputed"


def deep(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build three convolutions with batch normalisation and ReLU, and a dense layer."""
    h = batch["x"]
    for i in (1, 2, 3):
        h = nn.batch_norm(net, nn.conv(net, h, 3, 3, name=f"conv{i}", padding="same", bias=None), name=f"norm{i}")
        h = nn.relu(net, h, name=f"relu{i}")
    return Classification().score(net, nn.dense(net, nn.flatten(net, h, name="flat"), CLASSES, name="fc"), batch)


def averaged(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network in which the mean of the pixels follows batch normalisation."""
    h = nn.batch_norm(net, nn.conv(net, batch["x"], 3, 3, name="conv", bias=None), name="norm")
    h = nn.global_avg_pool(net, h, name="pool")
    return Classification().score(net, nn.dense(net, h, CLASSES, name="fc"), batch)


def step(network: NetworkFunction, recompute: Sequence[str], strategy: Strategy | Placed | None = None) -> Compiled:
    """Return a compiled training step."""
    workload = replace(workload_of(network, Momentum(), batch_size=5, dtype="float32"), recompute=recompute)
    return compiled((strategy or Single()).build(workload))


def copies(graph: Graph) -> list[Node]:
    return [node for node in graph if node.name.endswith(COPY)]


@pytest.mark.parametrize(
    ("network", "recompute", "expected"),
    [
        (deep, (), ""),
        (deep, ("norm", "activation"), "batch_norm_relu batch_norm_relu batch_norm_relu reshape"),
        # A layer that is fused with a layer that must not be recomputed is kept.
        (deep, ("norm",), ""),
        (NETWORKS["convolutional"], ("activation",), ""),
        (deep, ("conv3", "norm3", "relu3"), "conv2d batch_norm_relu reshape"),
        (deep, ("*[23]",), "conv2d batch_norm_relu conv2d batch_norm_relu reshape"),
        # The backward pass needs the pooled tensor, but not the larger input of the pooling, which is freed.
        (NETWORKS["convolutional"], ("pool",), ""),
        (NETWORKS["dropped_out"], ("regularizer",), "dropout_mask mul"),
        # The backward pass needs only the mean and the variance.
        (averaged, ("norm",), ""),
    ],
)
def test_copied_ops(network: NetworkFunction, recompute: Sequence[str], expected: str) -> None:
    (part,) = step(network, recompute).parts.values()
    assert sorted(node.op for node in copies(part.graph)) == sorted(expected.split())


SEGMENTS = ("conv[23]", "norm?", "relu?")


@pytest.mark.parametrize("recompute", [("norm", "activation"), SEGMENTS], ids=["short", "segments"])
def test_copies_equal_their_nodes_and_replace_them_in_the_backward_pass(recompute: Sequence[str]) -> None:
    (part,) = step(deep, recompute).parts.values()
    graph, position = part.graph, {name: i for i, name in enumerate(part.graph.nodes)}
    verify(graph)
    forward = [node for node in graph if node.layer and node.layer.kind == "loss" and not node.backward]
    last_forward = max(position[node.name] for node in forward)
    for copy in copies(graph):
        node = graph.nodes[copy.name.removesuffix(COPY)]
        assert (copy.op, copy.attributes, copy.outputs) == (node.op, node.attributes, node.outputs)
        assert [t.node.removesuffix(COPY) for t in copy.inputs] == [t.node for t in node.inputs]
        assert position[node.name] < last_forward < position[copy.name]
        readers = [each for each in graph if each.backward and set(each.inputs) & set(node.tensors)]
        read = {tensor for each in readers for tensor in each.inputs} & set(node.tensors)
        # Only the mean and the variance are kept; the images are larger.
        assert all(graph.spec(tensor).rank == 1 for tensor in read)


def test_copies_are_made_as_late_as_possible() -> None:
    (part,) = step(deep, ("norm", "activation")).parts.values()
    order = [node.op for node in part.graph if node.name.endswith(COPY) or node.op == "batch_norm_relu_gradient"]
    assert [op for op in order if op != "reshape"] == ["batch_norm_relu", "batch_norm_relu_gradient"] * 3


def test_copies_on_several_devices_wait_for_the_gradient() -> None:
    constraints = {"*1": 0, "conv2": 0, "*m[23]": 1, "fc": 1}
    strategy = Placed(ModelParallel(workers=2, concurrent_steps=2, constraints=constraints))
    for part in step(deep, ("norm", "activation"), strategy).parts.values():
        graph, late = part.graph, set[str]()
        for node in graph:
            before = {*(tensor.node for tensor in node.inputs), *node.control_inputs}
            if node.op.endswith("_gradient") or before & late or (node.op == "recv" and "gradients" in node.name):
                late.add(node.name)
        found = copies(graph)
        assert found
        assert {node.name for node in found} <= late


def small_step(layer: LayerStamp, *, squared: bool = True) -> tuple[Graph, Tensor]:
    """Return h = tanh(x), where h is of a layer, and the gradient of sum(h * h), or of sum(h), with respect to x."""
    graph = Graph()
    x = ops.placeholder(graph, (4, 3), "float32", name="x")
    with graph.layer(layer):
        h = ops.tanh(graph, x, name="h")
    y = ops.mul(graph, h, h) if squared else h
    (dx,) = gradients(graph, [ops.reduce_sum(graph, y, axes=(0, 1))], [x])
    assert dx is not None
    return graph, dx


RECOMPUTED = LayerStamp("h", "activation", recomputed=True)


def test_a_graph_without_recomputed_layers_stays_as_it_is() -> None:
    graph, dx = small_step(LayerStamp("h", "activation"))
    assert recompute_activations(graph, [dx]) is graph


def test_values_that_are_fetched_or_sent_are_not_computed_twice() -> None:
    graph, dx = small_step(RECOMPUTED)
    assert [node.name for node in copies(recompute_activations(graph, [dx]))] == ["h/recomputed"]
    h = graph.nodes["h"][0]
    assert not copies(recompute_activations(graph, [dx, h]))
    ops.send(graph, h, key="h:0->there", destination="/job:worker/task:1/device:cpu:0")
    assert not copies(recompute_activations(graph, [dx]))


@pytest.mark.parametrize("squared", [True, False], ids=["reader of a gradient", "reader of h alone"])
def test_a_copy_waits_for_a_backward_node(squared: bool) -> None:
    graph, dx = small_step(RECOMPUTED, squared=squared)
    (copy,) = copies(recompute_activations(graph, [dx]))
    assert copy.control_inputs
    assert all(graph.nodes[name].backward for name in copy.control_inputs)
