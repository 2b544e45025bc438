"""Workloads other than the classification of images: other fields, other metrics, several outputs and losses."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner import nn
from runner.engine.graph import ops
from runner.engine.graph.network import NetworkBuilder, Outputs
from runner.engine.run.session import scalar
from runner.errors import ConfigError
from runner.fields import Field
from runner.kernels.registry import Registry
from runner.optimizers.lbfgs import Lbfgs
from runner.optimizers.sgd import Momentum
from runner.strategies.async_data import AsyncData
from runner.strategies.base import Strategy, Workload
from runner.strategies.hybrid import Hybrid
from runner.strategies.model import ModelParallel
from runner.strategies.sandblaster import Sandblaster
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from runner.tasks.regression import regress
from tests.strategies.networks import TEST_BATCH, Batch
from tests.strategies.training import Placed, begun, difference, rate_of

FIELDS = {"x": Field((5,)), "y": Field((2,)), "kind": Field((), "int64")}


@dataclass(frozen=True)
class Table:
    """A source of endless rows: five inputs, two numbers that depend on them, and a class."""

    batch_size: int

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, NDArray[Any]]:
        """Return rows lo..hi-1 of the batch; the last three of a test batch are padding."""
        size = TEST_BATCH if split == "test" else self.batch_size
        x = np.random.default_rng([step, split == "test"]).standard_normal((size, 5))
        rows = {
            "x": x,
            "y": np.stack([x.sum(axis=1), np.abs(x[:, 0])], axis=1),
            "kind": (x[:, 1] > 0).astype(np.int64),
            "index": step * size + np.arange(size),
            "mask": (np.arange(size) < size - 3 * (split == "test")).astype(np.float64),
        }
        return {name: values[lo:hi] for name, values in rows.items()}


def regression(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build two dense layers that predict the two numbers of a row."""
    h = nn.relu(net, nn.dense(net, batch["x"], 7, name="fc1"), name="relu1")
    return regress(net, nn.dense(net, h, 2, name="fc2"), batch["y"])


def two_headed(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network with two outputs and a loss of its own: the sum of both losses, with a metric of each output."""
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


NETWORKS = {"regression": (regression, {"loss", "mae"}), "two_headed": (two_headed, {"loss", "squares", "accuracy"})}

MOMENTUM, LBFGS = Momentum(), Lbfgs(history=3)

CASES = {
    "ring": (SyncData(workers=3, combine="ring_all_reduce"), MOMENTUM),
    "reduce": (SyncData(workers=2, combine="sharded_reduce"), MOMENTUM),
    "servers": (SyncData(workers=2, combine="parameter_server", servers=2), MOMENTUM),
    "model": (Placed(ModelParallel(workers=2)), MOMENTUM),
    "pipeline": (Placed(ModelParallel(workers=2, concurrent_steps=3)), MOMENTUM),
    "downpour": (AsyncData(workers=1, loop="direct"), MOMENTUM),
    "sandblaster": (Sandblaster(workers=2, portions_per_worker=2), LBFGS),
}


def run_of(strategy: Any, workload: Workload, registry: Registry) -> tuple[Any, list[dict[str, float]], dict[str, Any]]:
    """Return the weights after three steps, the metrics of each step, and the answers of an evaluation."""
    with begun(strategy, workload, registry, source=Table(workload.batch_size)) as trainer:
        steps = [trainer.step_driver.update(step, rate_of(step, workload.state_dtype)) for step in range(3)]
        metrics = [{name: float(each) for name, each in found.items()} for found in steps]
        weights = trainer.weights()
        scored = trainer.session.run("eval", step=0, feeds={"step": scalar(0, "int64")})
        return weights, metrics, {name: value.copy() for name, value in scored.items()}


@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("name", sorted(CASES))
def test_strategies_train_any_task_like_single(name: str, network: str, registry: Registry) -> None:
    strategy, optimizer = CASES[name]
    build, names = NETWORKS[network]
    workload = Workload(build, optimizer, FIELDS, "float64", 7, 12, TEST_BATCH)
    weights, metrics, scored = run_of(strategy, workload, registry)
    expected_weights, expected_metrics, expected_scores = run_of(Single(), workload, registry)
    assert metrics[0].keys() == names
    assert difference(weights, expected_weights) < 1e-12
    for found, expected in zip(metrics, expected_metrics, strict=True):
        assert found == pytest.approx(expected, rel=1e-12)
    assert scored.keys() == expected_scores.keys() >= {*names, "mask"}
    for key, value in expected_scores.items():
        np.testing.assert_allclose(scored[key], value, rtol=1e-11, atol=1e-12, err_msg=key)


def test_regression_equals_its_formula(registry: Registry) -> None:
    workload = Workload(regression, MOMENTUM, FIELDS, "float64", 7, 12, TEST_BATCH)
    with begun(Single(), workload, registry, source=Table(12)) as trainer:
        w = trainer.weights()
        rows = Table(12).read("train", 0, 0, 12)
        hidden = np.maximum(rows["x"] @ w["fc1/weights"] + w["fc1/bias"], 0)
        error = hidden @ w["fc2/weights"] + w["fc2/bias"] - rows["y"]
        found = trainer.step_driver.update(0, rate_of(0, "float64"))
    assert float(found["loss"]) == pytest.approx((error**2).mean(), rel=1e-12)
    assert float(found["mae"]) == pytest.approx(np.abs(error).mean(), rel=1e-12)


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_a_strategy_for_classification_refuses_another_loss_by_name(network: str) -> None:
    strategy: Strategy = Hybrid(workers=2)
    with pytest.raises(ConfigError, match=r"parallelism=hybrid: .*loss"):
        strategy.build(Workload(NETWORKS[network][0], MOMENTUM, FIELDS, "float64", 7, 12, TEST_BATCH))
