"""Workloads other than the classification of images: other fields, other metrics, several outputs and losses."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner import nn
from runner.engine.graph import Constant, Expr, NetworkBuilder, NetworkFunction, Outputs, Tensor, apply, ops
from runner.errors import ConfigError
from runner.fields import Field
from runner.optimizers import Lbfgs, Momentum
from runner.strategies import AsyncData, Hybrid, ModelParallel, Sandblaster, SyncData, Workload
from runner.tasks.classification import Classification
from runner.tasks.regression import Regression
from tests.strategies.networks import TEST_BATCH, Batch, Source
from tests.strategies.training import Placed, expect_like_single

FIELDS = {"x": Field((5,)), "y": Field((2,)), "kind": Field((), "int64")}


class Table(Source):
    """A source of rows: five inputs, two numbers that depend on them, and a class."""

    def draw(self, rng: np.random.Generator, size: int, step: int, test: bool) -> dict[str, NDArray[Any]]:
        x = rng.standard_normal((size, 5))
        y = np.stack([x.sum(axis=1), np.abs(x[:, 0])], axis=1)
        return {"x": x, "y": y, "kind": (x[:, 1] > 0).astype(np.int64)}


def regression(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build two dense layers that predict the two numbers of a row."""
    h = nn.relu(net, nn.dense(net, batch["x"], 7, name="fc1"), name="relu1")
    return Regression().score(net, nn.dense(net, h, 2, name="fc2"), batch)


def two_headed(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network with two outputs. The loss is the sum of both losses; each output has a metric."""
    h = nn.relu(net, nn.dense(net, batch["x"], 7, name="fc1"), name="relu1")
    numbers, logits = (nn.dense(net, h, 2, name=name) for name in ("numbers", "logits"))
    with net.layer("loss", "loss"):
        error = ops.sub(net.graph, numbers, batch["y"])
        squares = ops.reduce_sum(net.graph, ops.mul(net.graph, error, error), axes=(1,))
        entropy = ops.softmax_cross_entropy(net.graph, logits, batch["kind"])[0]
        right = ops.cast(
            net.graph, ops.equal(net.graph, ops.argmax(net.graph, logits, axis=1), batch["kind"]), "float64"
        )
        losses = ops.add(net.graph, squares, entropy)
    return Outputs(losses, {"squares": squares, "accuracy": right}, {"numbers": numbers}, logits)


def ranked(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a classifier of four classes with the metric "top2": whether at most one logit exceeds the label's."""
    h = nn.relu(net, nn.dense(net, batch["x"], 7, name="fc1"), name="relu1")
    outputs = Classification().score(net, nn.dense(net, h, 4, name="fc2"), {"y": batch["kind"]})
    graph, logits = net.graph, outputs.prediction
    with net.layer("rank", "loss"):
        truth = ops.one_hot(graph, batch["kind"], depth=4, dtype="float64")
        own = ops.reduce_sum(graph, ops.mul(graph, logits, truth), axes=(1,), keepdims=True)
        above = ops.reduce_sum(graph, ops.cast(graph, ops.greater(graph, logits, own), "float64"), axes=(1,))
        right = ops.cast(graph, ops.less(graph, above, ops.fill(graph, 2.0, (), "float64")), "float64")
    return replace(outputs, metrics={**outputs.metrics, "top2": right})


def weighted(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a classifier of four classes with smoothed labels and class weights; class 1 is ignored."""
    h = nn.relu(net, nn.dense(net, batch["x"], 7, name="fc1"), name="relu1")
    logits = nn.dense(net, h, 4, name="fc2")
    weights = [0.5, 2.0, 1.0, 3.0]
    task = Classification(label_smoothing=0.2, class_weights=weights, ignored_label=1)
    return task.score(net, logits, {"y": batch["kind"]})


def reconstructed(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build an autoencoder whose loss has ops on tensors of the shapes (N, 5), (N, 1), (N,) and (); collect outputs."""
    graph = net.graph
    y = nn.dense(net, nn.relu(net, nn.dense(net, batch["x"], 7, name="fc1"), name="relu1"), 5, name="fc2")
    with net.layer("loss", "loss"):
        weights = Expr(graph, net.parameter("scale", (5,), Constant(0.5)).tensor)
        outputs, target = (Expr(graph, each) for each in (y, batch["x"]))
        error = abs(outputs * weights - target)
        huber = apply(ops.select, apply(ops.less, error, error.scalar(1.0)), 0.5 * error * error, error - 0.5)
        size = apply(ops.reduce_mean, abs(target), axes=(1,), keepdims=True)
        middle = apply(ops.reduce_mean, outputs, axes=(1,), keepdims=True)
        spread = apply(ops.reduce_mean, (outputs - middle).square(), axes=(1,))
        late = 1.0 / (1.0 + apply(ops.cast, Expr(graph, net.step), dtype="float64"))
        losses = apply(ops.reduce_sum, huber / (1.0 + size), axes=(1,)) + late * spread
    return Outputs(losses.tensor, {"spread": spread.tensor}, {"outputs": y, "kind": batch["kind"]}, y)


def embedded(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a regression whose inputs contain a trained vector for each class, with normalisation of each row."""
    known = nn.add(net, batch["x"], nn.embedding(net, batch["kind"], 3, 5, name="embed"), name="sum")
    h = nn.group_norm(net, nn.layer_norm(net, known, name="norm"), 5, epsilon=0.1, name="groups")
    h = nn.gelu(net, nn.dense(net, nn.add(net, known, h, name="both"), 7, name="fc1"), name="gelu")
    return Regression().score(net, nn.dense(net, h, 2, name="fc2"), batch)


NETWORKS = {
    "regression": (regression, {"loss", "mae"}),
    "two_headed": (two_headed, {"loss", "squares", "accuracy"}),
    "ranked": (ranked, {"loss", "accuracy", "top2"}),
    "weighted": (weighted, {"loss", "accuracy"}),
    "reconstructed": (reconstructed, {"loss", "spread"}),
    "embedded": (embedded, {"loss", "mae"}),
}

MOMENTUM, LBFGS = Momentum(), Lbfgs(history=3)

CASES = {
    "ring": (SyncData(workers=3, combine="ring_all_reduce"), MOMENTUM),
    "reduce": (SyncData(workers=2, combine="sharded_reduce"), MOMENTUM),
    "servers": (SyncData(workers=2, combine="parameter_server", servers=2), MOMENTUM),
    "model": (Placed(ModelParallel(workers=2)), MOMENTUM),
    "pipeline": (Placed(ModelParallel(workers=2, concurrent_steps=3)), MOMENTUM),
    "downpour": (AsyncData(workers=1, loop="direct"), MOMENTUM),
    # The output layer has two units, so with three or four workers, some workers have none of them.
    "hybrid a": (Hybrid(workers=3, scheme="a"), MOMENTUM),
    "hybrid b": (Hybrid(workers=4, scheme="b"), Momentum(clip_norm=0.5)),
    "hybrid c": (Hybrid(workers=3, scheme="c"), MOMENTUM),
    "hybrid of two": (Hybrid(workers=2, scheme="c"), MOMENTUM),
    "sandblaster": (Sandblaster(workers=2, portions_per_worker=2), LBFGS),
}


def tasks_of_strategies() -> Iterator[Any]:
    """Yield each strategy with each network. Simple losses are slow tests, except where a strategy splits the loss."""
    for name in sorted(CASES):
        simple = {"ranked", "weighted"} if name == "hybrid of two" else {"regression", "ranked", "weighted"}
        of_units = name.startswith("hybrid") and name != "hybrid of two"
        for network in sorted(NETWORKS):
            slow = network in simple and not of_units
            yield pytest.param(name, network, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("name", "network"), list(tasks_of_strategies()))
def test_strategies_train_any_task_like_single(name: str, network: str) -> None:
    strategy, optimizer = CASES[name]
    build, names = NETWORKS[network]
    workload = Workload(build, optimizer, FIELDS, "float64", 7, 12, TEST_BATCH)
    found = expect_like_single(strategy, workload, Table(12))
    assert found.metrics[0].keys() == names
    assert found.scores[0].keys() >= {*names, "mask"}


Losses = Callable[[NetworkBuilder, Expr, Batch], Tensor]
"""Function that adds losses (N,) of outputs (N, 2) to a layer."""


def losing(losses: Losses, kind: str = "loss") -> NetworkFunction:
    """Return a function that builds an activation, a dense layer, and a layer of this kind with losses."""

    def build(net: NetworkBuilder, batch: Batch) -> Outputs:
        y = nn.dense(net, nn.relu(net, batch["x"], name="relu1"), 2, name="fc1")
        with net.layer("loss", kind):
            return Outputs(losses(net, Expr(net.graph, y), batch), {}, {}, y)

    return build


def collecting_below(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a dense layer over an activation, which is collected."""
    h = nn.relu(net, batch["x"], name="relu1")
    return replace(Regression().score(net, nn.dense(net, h, 2, name="fc1"), batch), collected={"hidden": h})


def summed(losses: Expr) -> Tensor:
    return ops.reduce_sum(losses.graph, losses.tensor, axes=(1,))


def mean_over_examples(net: NetworkBuilder, y: Expr, batch: Batch) -> Tensor:
    total = Expr(net.graph, ops.reduce_mean(net.graph, y.tensor, axes=(0,), keepdims=True))
    return summed(y - total)


def of_each_example(net: NetworkBuilder, y: Expr, batch: Batch) -> Tensor:
    """Multiply (N, 1) by (N,), which gives (N, N)."""
    ones = ops.cast(net.graph, batch["kind"], "float64")
    return summed(
        Expr(net.graph, ops.reduce_sum(net.graph, y.tensor, axes=(1,), keepdims=True)) * Expr(net.graph, ones)
    )


def of_probabilities(net: NetworkBuilder, y: Expr, batch: Batch) -> Tensor:
    losses, probabilities = ops.softmax_cross_entropy(net.graph, y.tensor, batch["kind"])
    return ops.add(net.graph, losses, summed(Expr(net.graph, probabilities)))


def of_scalar(net: NetworkBuilder, y: Expr, batch: Batch) -> Tensor:
    return summed(y * Expr(net.graph, net.parameter("temperature", (), Constant(1.0)).tensor))


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (
            losing(lambda net, y, batch: summed(apply(ops.softmax, y))),
            "layer 'loss' (loss) follows a dense layer, and its op 'softmax' cannot be sharded by units (shapes of its "
            "inputs: (12, 2)); expected element-wise ops on tensors (N, units) and (N, 1), scalar constants, reduce_s",
        ),
        (losing(mean_over_examples), "its op 'reduce_mean' cannot be sharded by units (shapes of its inputs: (12, 2))"),
        (losing(of_each_example), "its op 'mul' cannot be sharded by units (shapes of its inputs: (12, 1), (12,))"),
        (
            losing(of_probabilities),
            "its op 'softmax_cross_entropy' cannot be sharded by units (shapes of its inputs: (12, 2), (12,)); expect",
        ),
        (losing(of_scalar), "variable 'loss/temperature' after the first dense layer is a scalar; expected variables"),
        (
            losing(lambda net, y, batch: summed(y * y), kind="merge"),
            "no layer of kind 'loss' reads an output of the dense layers; compute the loss in such a layer, as runner",
        ),
        (collecting_below, "the network returns relu1/relu:0 as 'hidden'; expected losses, metrics and collected val"),
    ],
)
def test_hybrid_refuses_a_loss_that_it_cannot_split(network: NetworkFunction, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Hybrid(workers=2, scheme="a").build(Workload(network, MOMENTUM, FIELDS, "float64", 7, 12, TEST_BATCH))
    text = str(caught.value)
    assert expected in text
    assert text.startswith("parallelism=hybrid: ")
    assert text.endswith("use parallelism=sync_data")
