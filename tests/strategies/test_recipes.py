"""Optimizer rules by name with schedules, and averaged weights: every strategy gives the results of ``single``."""

from dataclasses import replace
from typing import Any

import pytest

from runner.engine.compile.program import Client
from runner.engine.graph import Tensor
from runner.engine.run.session import scalar
from runner.optimizers import Adam, Momentum, Optimizer, RmsProp
from runner.optimizers.averages import WeightsAverage, average_of
from runner.strategies import AsyncData, Hybrid, ModelParallel, Single, SyncData, Workload
from runner.strategies.downpour.pushed_server import Staleness
from tests.strategies.networks import hybrid, workload_of
from tests.strategies.training import Placed, begun, difference, expect_like_single, expect_same_bits, outcome

RULES = [
    {"match": "*/bias", "lr_factor": 2.0, "schedule": {"name": "step"}},
    {"match": "fc2/*", "lr_factor": 0.5, "weight_decay": 0.1},
    {"match": "conv1/weights", "lr_factor": 0.0},
]
AVERAGE = WeightsAverage(0.9)
OPTIMIZERS: dict[str, Optimizer] = {
    "momentum": Momentum(weight_decay=1e-2, clip_norm=0.5, rules=RULES, average=AVERAGE),
    "rmsprop": RmsProp(momentum=0.9, epsilon=1.0, weight_decay=1e-2, rules=RULES, average=AVERAGE),
    "adam": Adam(decoupled_weight_decay=True, weight_decay=0.1, rules=RULES, average=AVERAGE),
}
STRATEGIES: dict[str, Any] = {
    "ring": SyncData(workers=3, combine="ring_all_reduce"),
    "servers": SyncData(workers=2, combine="parameter_server", servers=2),
    "model": Placed(ModelParallel(workers=2)),
    "shards": Placed(ModelParallel(workers=2, shard={"fc1": "column", "fc2": "row"})),
    "pipeline": Placed(ModelParallel(workers=2, concurrent_steps=2)),
    "hybrid": Hybrid(workers=3, scheme="b"),
    "direct": AsyncData(workers=1, loop="direct"),
    "sequential": AsyncData(workers=1, loop="sequential", virtual_time=True),
    "scaling": AsyncData(workers=1, loop="direct", staleness=Staleness("scale")),
    "dropping": AsyncData(workers=1, loop="direct", staleness=Staleness("drop", 3)),
}


def of(optimizer: Optimizer) -> Workload:
    return workload_of(hybrid, optimizer, batch_size=12)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_strategies_apply_rules_and_averages_like_single(name: str, optimizer: str) -> None:
    found = expect_like_single(STRATEGIES[name], of(OPTIMIZERS[optimizer]))
    assert found.weights.keys() > {average_of("fc1/weights"), average_of("fc3/bias")}


def test_the_factor_of_dense_layers_multiplies_all_rates() -> None:
    schedule = {"name": "step"}
    biases = [{"match": "*/bias", "schedule": schedule}]
    found = outcome(Hybrid(workers=2, dense_lr_factor=0.5), of(Momentum(rules=biases)))
    halved = [
        {"match": "fc?/bias", "lr_factor": 0.5, "schedule": schedule},
        *biases,
        {"match": "fc?/*", "lr_factor": 0.5},
    ]
    expected = outcome(Single(), of(Momentum(rules=halved)))
    assert difference(found.weights, expected.weights) < 1e-12


def test_evaluations_use_averages_and_training_does_not() -> None:
    averaged = OPTIMIZERS["momentum"]
    plain = replace(averaged, average=WeightsAverage())
    found, other = (outcome(Single(), of(optimizer)) for optimizer in (averaged, plain))
    weights, without, scores = found.weights, other.weights, found.scores[0]
    assert all((weights[name] == without[name]).all() for name in without), "training does not depend on the averages"
    with begun(Single(), of(plain)) as trainer:
        trainer.restore({name: weights.get(average_of(name), value) for name, value in without.items()})
        expect_same_bits(trainer.evaluate(), scores)
    assert abs(scores["loss"] - other.scores[0]["loss"]) > 1e-3


def test_averages_start_at_the_initial_weights() -> None:
    with begun(Hybrid(workers=3), of(OPTIMIZERS["momentum"])) as trainer:
        weights = trainer.weights()
        averages = {name.removesuffix("/average"): value for name, value in weights.items() if name.endswith("average")}
        assert len(averages) == 8
        assert difference({name: weights[name] for name in averages}, averages) == 0.0


def test_a_replica_descends_by_the_rates_of_rules() -> None:
    """Between fetches, a replica's own copy of a frozen variable does not change."""
    rules = [{"match": "fc?/*", "lr_factor": 0.0}]
    strategy = AsyncData(workers=1, loop="overlapped", n_fetch=3, n_push=3, virtual_time=True)
    copies = Client("copies", {name: Tensor(f"replica_0/read/{name}") for name in ("fc1/weights", "conv1/weights")})
    with begun(strategy, of(Momentum(rules=rules)), copies=copies) as trainer:
        start = trainer.weights()
        for step in range(2):
            trainer.step_driver.update(step, scalar(0.1, "float64"))
        trainer.step_driver.synchronize()
        copied = trainer.session.run("copies")
        assert (copied["fc1/weights"] == start["fc1/weights"]).all()
        assert (copied["conv1/weights"] != start["conv1/weights"]).any()
