"""Shares of a batch, the clients of every program, and ``single``, with which the other strategies are compared."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.graph import Constant, Graph, NetworkBuilder, Outputs, Tensor
from runner.errors import RunnerError
from runner.optimizers import Momentum, Sgd
from runner.strategies import AsyncData, Hybrid, ModelParallel, Single, Strategy, SyncData
from runner.strategies.replica import ordered_sum, shares
from tests.strategies.networks import CLASSES, NETWORKS, Batch, Examples, dense, workload_of
from tests.strategies.training import (
    Array,
    Placed,
    Weights,
    begun,
    difference,
    expect_same_bits,
    expect_same_run,
    opened,
    trained,
)

SERVED = SyncData(workers=3, combine="parameter_server", servers=2)

ALL: list[Strategy] = [Single(), SyncData(workers=1), SyncData(workers=2), SyncData(workers=3), SERVED]
"""Strategies that train with one client."""

SHARDED = Placed(ModelParallel(workers=3, shard={"fc*": "column"}))
EVERY = [*ALL, Hybrid(workers=3), SHARDED, AsyncData(workers=1, servers=2, loop="sequential")]


def named(strategy: Strategy) -> str:
    return f"{strategy.name}-{strategy.workers}{'-served' if strategy is SERVED else ''}"


@given(st.integers(0, 300), st.integers(1, 40))
def test_shares_are_those_of_array_split(total: int, parts: int) -> None:
    cut = [np.arange(lo, hi).tolist() for lo, hi in shares(total, parts)]
    assert cut == [part.tolist() for part in np.array_split(np.arange(total), parts)]


def test_a_sum_of_one_part_adds_no_node() -> None:
    graph = Graph()
    assert ordered_sum(graph, [Tensor("x")]) == Tensor("x")
    assert len(graph) == 0


@pytest.mark.parametrize("strategy", EVERY, ids=named)
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_programs_have_the_clients_and_variables_of_the_unsharded_network(strategy: Strategy, network: str) -> None:
    workload = workload_of(network, Momentum(), batch_size=7)
    program, whole = strategy.build(workload), Single().build(workload)
    assert dict(program.variables) == dict(whole.variables)
    assert list(program.clients["save"].fetches) == list(program.variables)
    assert list(program.clients["restore"].feeds) == list(program.variables)
    assert program.workers == strategy.workers
    if strategy in ALL:
        assert set(program.clients) == {"init", "train", "eval", "save", "restore"}
        assert set(program.clients["train"].fetches) == {"loss", "accuracy"}
        layers = {node.layer.name for node in program.graph if node.layer is not None}
        assert layers == {node.layer.name for node in whole.graph if node.layer is not None}


@pytest.mark.parametrize("strategy", ALL, ids=named)
def test_shares_of_a_batch_are_read_in_worker_order(strategy: Strategy) -> None:
    program = strategy.build(workload_of(dense, Sgd(), batch_size=7))
    expected = {"train": shares(7, strategy.workers), "eval": shares(11, strategy.workers)}
    splits = {"train": "train", "eval": "test"}
    for client, ranges in expected.items():
        slots = program.clients[client].inputs
        assert list(dict.fromkeys((slot.lo, slot.hi) for slot in slots)) == ranges
        assert {slot.split for slot in slots} == {splits[client]}
        assert [slot.field for slot in slots] == ["x", "y", "index", "mask"] * strategy.workers


def test_training_before_initialisation_names_the_client_to_run() -> None:
    with (
        opened(SERVED, workload_of(dense, Sgd(), batch_size=7)) as trainer,
        pytest.raises(RunnerError, match=r"variable '.*' has no value yet: run the 'init' or the 'restore' client"),
    ):
        trainer.train([0])


@pytest.mark.parametrize("strategy", EVERY, ids=named)
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_a_restored_run_continues_bit_for_bit(strategy: Strategy, network: str) -> None:
    workload = workload_of(network, Momentum(), batch_size=7)
    with begun(strategy, workload) as first:
        first.train(range(2))
        saved, history, undisturbed = first.weights(), first.train(range(2, 4)), first.weights()
    with begun(strategy, workload, saved) as second:
        expect_same_bits(second.weights(), saved)
        assert second.train(range(2, 4)) == history
        expect_same_bits(second.weights(), undisturbed)


def test_saved_and_restored_values_are_copies() -> None:
    with begun(Single(), workload_of(dense, Momentum(), batch_size=7)) as trainer:
        saved = trainer.weights()
        mine = {name: value.copy() for name, value in saved.items()}
        trainer.train(range(2))
        expect_same_bits(saved, mine)
        assert difference(trainer.weights(), saved) > 0
        trainer.restore(mine)
        for value in mine.values():
            value[...] = np.nan
        assert np.isfinite(difference(trainer.weights(), trainer.weights()))


@pytest.mark.parametrize("strategy", ALL, ids=named)
def test_equal_seeds_give_equal_bits_and_other_seeds_other_values(strategy: Strategy) -> None:
    workload = workload_of("dropped_out", Momentum(), batch_size=7)
    expect_same_run(*(trained(strategy, workload, 3) for _ in range(2)))
    reseeded = workload_of("dropped_out", Momentum(), batch_size=7, seed=8)
    (start, _), (other_start, _) = (trained(strategy, each, 0) for each in (workload, reseeded))
    assert difference(start, other_start) > 1e-3


@pytest.mark.parametrize("strategy", EVERY, ids=named)
def test_evaluation_gathers_every_example_in_order_and_counts_no_padding(strategy: Strategy) -> None:
    workload = workload_of("batch_normalised", Sgd(), batch_size=7)
    with begun(strategy, workload) as trainer:
        trainer.train(range(2))
        scores = trainer.evaluate(batch=3)
        weights = trainer.weights()
    examples = Examples(7).read("test", 3, 0, 11)
    np.testing.assert_array_equal(scores["labels"], examples["y"])
    np.testing.assert_array_equal(scores["mask"], examples["mask"])
    hits = (scores["predictions"] == scores["labels"]) & (scores["mask"] == 1)
    assert scores["accuracy"] == hits.sum()
    with begun(Single(), workload, weights) as reference:
        expected = reference.evaluate(batch=3)
    np.testing.assert_array_equal(scores["predictions"], expected["predictions"])
    assert float(scores["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-12)


def with_an_idle_parameter(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network with a parameter on which the loss does not depend."""
    with net.layer("idle", "dense"):
        net.parameter("weights", (3,), Constant(2.0))
    return dense(net, batch)


@pytest.mark.parametrize("strategy", ALL, ids=named)
def test_a_parameter_on_which_the_loss_does_not_depend_keeps_its_value(strategy: Strategy) -> None:
    weights, _ = trained(strategy, workload_of(with_an_idle_parameter, Momentum(), batch_size=7), 2)
    assert weights["idle/weights"].tolist() == [2.0, 2.0, 2.0]


def loss_and_gradients(weights: Weights, x: Array, y: Array) -> tuple[float, float, dict[str, Array]]:
    """Return mean loss, accuracy and the gradient of every parameter of the dense network, computed with NumPy."""
    layers = ["fc1", "fc2", "fc3"]
    inputs, h = [], x.reshape(len(x), -1)
    for layer in layers:
        inputs.append(h)
        z = h @ weights[f"{layer}/weights"] + weights[f"{layer}/bias"]
        h = z if layer == "fc3" else np.maximum(z, 0)
    p = np.exp(h - h.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    delta = (p - np.eye(CLASSES)[y]) / len(y)
    gradients = {}
    for layer, h_in in zip(reversed(layers), reversed(inputs), strict=True):
        gradients[f"{layer}/weights"] = h_in.T @ delta
        gradients[f"{layer}/bias"] = delta.sum(0)
        delta = (delta @ weights[f"{layer}/weights"].T) * (h_in > 0)
    return float(loss), float((h.argmax(1) == y).mean()), gradients


@pytest.mark.parametrize("microbatches", [1, 2, 5])
def test_a_step_is_gradient_descent_on_the_mean_loss(microbatches: int) -> None:
    workload = workload_of(dense, Sgd(), batch_size=9, microbatches=microbatches)
    with begun(Single(), workload) as trainer:
        for step in range(4):
            before = trainer.weights()
            [(loss, accuracy)] = trainer.train([step])
            batch = Examples(9).read("train", step, 0, 9)
            expected, hits, gradients = loss_and_gradients(before, batch["x"], batch["y"])
            assert loss == pytest.approx(expected, rel=1e-12)
            assert accuracy == pytest.approx(hits, rel=1e-12)
            after = trainer.weights()
            for name, gradient in gradients.items():
                step_taken = before[name] - 0.1 / (1 + step) * gradient
                np.testing.assert_allclose(after[name], step_taken, rtol=1e-10, atol=1e-14)


def test_single_sends_nothing() -> None:
    with begun(Single(), workload_of(dense, Sgd(), batch_size=9, microbatches=3)) as trainer:
        assert trainer.sent(range(2)) == [0]
