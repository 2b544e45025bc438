"""Training in bfloat16: variables are float32; activations are bfloat16, which takes half the bytes of float32."""

from pathlib import Path

import numpy as np
import pytest

from runner import nn
from runner.checkpoint import CheckpointMeta, load, save
from runner.engine.compile.passes.optimize import default_passes, optimize
from runner.engine.graph import Graph, NetworkBuilder, Outputs
from runner.engine.run.kernel_table import load_kernels
from runner.optimizers import Momentum
from runner.strategies import Single, Strategy, SyncData, Workload
from runner.tasks.classification import Classification
from tests.engine.compile.passes.graph_text import counts
from tests.engine.compile.passes.training_graphs import training_step
from tests.strategies.networks import CLASSES, Batch, workload_of
from tests.strategies.training import begun, difference, expect_same_bits, single

IMAGE = (2, 8, 8)


def convnet(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build the layers of convolutional networks: bias and ReLU, normalisation and ReLU, a sum, pooling, dropout."""
    h = nn.relu(net, nn.conv(net, batch["x"], 8, 3, name="conv1", padding="same"), name="relu1")
    h = nn.max_pool(net, h, 2, name="pool1")
    branch = nn.conv(net, h, 8, 3, name="conv2", padding="same", bias=None)
    branch = nn.relu(net, nn.batch_norm(net, branch, name="norm2"), name="relu2")
    h = nn.add(net, h, nn.conv(net, branch, 8, 3, name="conv3", padding="same", bias=None), name="sum3")
    h = nn.flatten(net, nn.avg_pool(net, h, 2, name="pool3"), name="flat")
    h = nn.dropout(net, nn.relu(net, nn.dense(net, h, 16, name="fc4"), name="relu4"), 0.1, name="drop4")
    return Classification().score(net, nn.dense(net, h, CLASSES, name="fc5"), batch)


def convnet_workload(dtype: str) -> Workload:
    return workload_of(convnet, Momentum(), batch_size=32, dtype=dtype, example_shape=IMAGE)


@pytest.mark.parametrize("strategy", [Single(), SyncData(workers=2)], ids=["single", "sync_data"])
def test_feeds_fetches_and_variables_are_float32(strategy: Strategy) -> None:
    program = strategy.build(convnet_workload("bfloat16"))
    graph = program.graph
    assert {spec.dtype for spec in program.variables.values()} == {"float32"}
    for client in program.clients.values():
        slots = [slot.tensor for slot in client.inputs]
        fed = [tensor for tensors in client.feeds.values() for tensor in tensors]
        assert "bfloat16" not in {graph.spec(tensor).dtype for tensor in [*slots, *fed, *client.fetches.values()]}
    between_devices = [
        tensor for node in graph for tensor in node.inputs if graph.nodes[tensor.node].device != node.device
    ]
    assert (strategy.workers > 1) == bool(between_devices)
    assert "bfloat16" not in {graph.spec(tensor).dtype for tensor in between_devices}


def optimized(dtype: str) -> Graph:
    step = training_step(convnet, Momentum(), dtype)
    return optimize(step.graph, step.roots, default_passes(load_kernels()))[0]


def test_layers_are_fused_as_in_float32() -> None:
    narrow, wide = counts(optimized("bfloat16")), counts(optimized("float32"))
    assert narrow["conv2d_fused"] == wide["conv2d_fused"] == 2
    assert narrow["batch_norm_relu"] == narrow["batch_norm_relu_gradient"] == 1
    casts = narrow.pop("cast") - wide.pop("cast")
    images, filters_and_bias, dense_layers, gradient_of_logits = 1, 3 + 1, 2 * 2, 1
    assert casts == images + filters_and_bias + dense_layers + gradient_of_logits
    assert narrow == wide


def test_activations_are_bfloat16_and_gradients_and_updates_float32() -> None:
    graph = optimized("bfloat16")
    gradients = {"conv2d_weight_gradient", "conv2d_weight_bias_gradient", "matmul_bias_gradient"}
    found = [node for node in graph if node.op in gradients]
    assert len(found) == 5
    assert {spec.dtype for node in found for spec in node.outputs} == {"float32"}
    for node in graph:
        if node.op in ("conv2d_fused", "batch_norm_relu", "max_pool", "avg_pool", "relu_gradient"):
            assert node.outputs[0].dtype == "bfloat16", node.name
        if node.op == "assign":
            update = graph.nodes[node.inputs[1].node]
            assert (update.op, update.outputs[0].dtype) == ("elementwise", "float32")


@pytest.mark.slow
def test_a_convolutional_network_learns_as_in_float32() -> None:
    narrow, wide = ([loss for loss, _ in single(convnet_workload(dtype), 40)[1]] for dtype in ("bfloat16", "float32"))
    assert narrow != wide
    np.testing.assert_allclose(narrow[0], wide[0], rtol=0.01)
    ends = [np.mean(each[-5:]) for each in (narrow, wide)]
    assert ends[0] < 0.8 * narrow[0]
    assert ends[0] == pytest.approx(ends[1], rel=0.05)


@pytest.mark.parametrize(("before", "after"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_a_checkpoint_of_one_precision_continues_in_another(before: str, after: str, tmp_path: Path) -> None:
    with begun(Single(), convnet_workload(before)) as trainer:
        trainer.train(range(3))
        weights, loss = trainer.weights(), float(trainer.evaluate()["loss"])
    path = save(tmp_path, step=3, variables=weights, meta=CheckpointMeta("c0ffee", "0123abcd", 1, 96, {}))
    variables = Single().build(convnet_workload(after)).variables
    _, loaded, _ = load(path, {name: (spec.shape, spec.dtype) for name, spec in variables.items()})
    with begun(Single(), convnet_workload(after), loaded) as trainer:
        expect_same_bits(trainer.weights(), weights)
        assert float(trainer.evaluate()["loss"]) == pytest.approx(loss, rel=0.02)
        assert np.isfinite(trainer.train(range(3, 6))).all()
        assert 0 < difference(trainer.weights(), weights) < 1
