"""Shares of a batch, and the clients of every program."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.graph.graph import Graph
from runner.engine.graph.network import NetworkBuilder, Outputs
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.engine.graph.variables import Constant
from runner.errors import RunnerError
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum, Sgd
from runner.strategies import STRATEGIES
from runner.strategies.base import Strategy
from runner.strategies.replica import ordered_sum, shares
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.strategies.networks import NETWORKS, Batch, Examples, dense, task_of
from tests.strategies.training import difference, expect_same_bits, opened, trained

SERVED = SyncData(workers=3, combine="parameter_server", servers=2)

ALL: list[Strategy] = [Single(), SyncData(workers=1), SyncData(workers=2), SyncData(workers=3), SERVED]


def named(strategy: Strategy) -> str:
    served = "-served" if strategy is SERVED else ""
    return f"{strategy.name}-{strategy.workers}{served}"


@given(st.integers(0, 300), st.integers(1, 40))
def test_shares_are_those_of_array_split(total: int, parts: int) -> None:
    cut = [np.arange(lo, hi).tolist() for lo, hi in shares(total, parts)]
    assert cut == [part.tolist() for part in np.array_split(np.arange(total), parts)]


def test_a_sum_of_one_part_is_the_part() -> None:
    graph = Graph()
    assert ordered_sum(graph, [Tensor("x")]) == Tensor("x")
    assert len(graph) == 0


def test_the_table_lists_strategies_under_their_own_names() -> None:
    assert {name: strategy().name for name, strategy in STRATEGIES.items()} == {name: name for name in STRATEGIES}


@pytest.mark.parametrize("strategy", ALL, ids=named)
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_programs_have_the_clients_and_variables_of_the_unsharded_network(strategy: Strategy, network: str) -> None:
    task = task_of(NETWORKS[network], Momentum(), batch_size=7)
    program, single = strategy.build(task), Single().build(task)
    assert set(program.clients) == {"init", "train", "eval", "save", "restore"}
    assert dict(program.variables) == dict(single.variables)
    assert list(program.clients["save"].fetches) == list(program.variables)
    assert list(program.clients["restore"].feeds) == list(program.variables)
    assert set(program.clients["train"].fetches) == {"loss", "accuracy"}
    assert program.workers == strategy.workers
    layers = {node.layer.name for node in program.graph if node.layer is not None}
    assert layers == {node.layer.name for node in single.graph if node.layer is not None}


@pytest.mark.parametrize("strategy", ALL, ids=named)
def test_shares_of_a_batch_are_read_in_worker_order(strategy: Strategy) -> None:
    program = strategy.build(task_of(dense, Sgd(), batch_size=7))
    expected = {"train": shares(7, strategy.workers), "eval": shares(11, strategy.workers)}
    splits = {"train": "train", "eval": "test"}
    for client, ranges in expected.items():
        slots = program.clients[client].inputs
        assert list(dict.fromkeys((slot.lo, slot.hi) for slot in slots)) == ranges
        assert {slot.split for slot in slots} == {splits[client]}
        assert [slot.field for slot in slots] == ["x", "y", "index", "mask"] * strategy.workers


@pytest.mark.parametrize("strategy", ALL, ids=named)
def test_training_before_initialisation_says_what_to_run(strategy: Strategy, registry: Registry) -> None:
    task = task_of(dense, Sgd(), batch_size=7)
    with (
        opened(strategy, task, registry) as trainer,
        pytest.raises(RunnerError, match=r"variable '.*' has no value yet: run the 'init' or the 'restore' client"),
    ):
        trainer.train([0])


@pytest.mark.parametrize("strategy", ALL, ids=named)
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_a_restored_run_continues_with_the_bits_of_the_undisturbed_one(
    strategy: Strategy, network: str, registry: Registry
) -> None:
    task = task_of(NETWORKS[network], Momentum(), batch_size=7)
    undisturbed, history = trained(strategy, task, registry, 6)
    with opened(strategy, task, registry) as first:
        first.session.run("init")
        first.train(range(3))
        saved = first.weights()
    with opened(strategy, task, registry) as second:
        second.session.run("restore", feeds=saved)
        expect_same_bits(second.weights(), saved)
        assert second.train(range(3, 6)) == history[3:]
        expect_same_bits(second.weights(), undisturbed)


def test_saved_values_do_not_change_with_further_training(registry: Registry) -> None:
    with opened(Single(), task_of(dense, Momentum(), batch_size=7), registry) as trainer:
        trainer.session.run("init")
        saved = trainer.weights()
        copies = {name: value.copy() for name, value in saved.items()}
        trainer.train(range(2))
        expect_same_bits(saved, copies)
        assert difference(trainer.weights(), saved) > 0


def test_restored_values_are_copies(registry: Registry) -> None:
    with opened(Single(), task_of(dense, Sgd(), batch_size=7), registry) as trainer:
        trainer.session.run("init")
        mine = {name: value.copy() for name, value in trainer.weights().items()}
        trainer.session.run("restore", feeds=mine)
        for value in mine.values():
            value[...] = np.nan
        assert np.isfinite(difference(trainer.weights(), trainer.weights()))


@pytest.mark.parametrize("strategy", ALL, ids=named)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(strategy: Strategy, registry: Registry) -> None:
    task = task_of(NETWORKS["dropped_out"], Momentum(), batch_size=7)
    first, history = trained(strategy, task, registry, 3)
    second, again = trained(strategy, task, registry, 3)
    expect_same_bits(first, second)
    assert history == again
    reseeded = task_of(NETWORKS["dropped_out"], Momentum(), batch_size=7, seed=8)
    (start, _), (other_start, _) = (trained(strategy, each, registry, 0) for each in (task, reseeded))
    assert difference(start, other_start) > 1e-3


@pytest.mark.parametrize("strategy", ALL, ids=named)
def test_evaluation_gathers_every_example_in_order_and_counts_no_padding(
    strategy: Strategy, registry: Registry
) -> None:
    task = task_of(NETWORKS["batch_normalised"], Sgd(), batch_size=7)
    with opened(strategy, task, registry) as trainer:
        trainer.session.run("init")
        trainer.train(range(2))
        scores = trainer.evaluate(batch=3)
        weights = trainer.weights()
    examples = Examples(7).read("test", 3, 0, 11)
    np.testing.assert_array_equal(scores["labels"], examples["y"])
    np.testing.assert_array_equal(scores["mask"], examples["mask"])
    hits = (scores["predictions"] == scores["labels"]) & (scores["mask"] == 1)
    assert scores["correct"] == hits.sum()
    with opened(Single(), task, registry) as reference:
        reference.session.run("restore", feeds=weights)
        expected = reference.evaluate(batch=3)
    np.testing.assert_array_equal(scores["predictions"], expected["predictions"])
    assert float(scores["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-12)


def with_an_idle_parameter(net: NetworkBuilder, batch: Batch) -> Outputs:
    """A parameter that the loss does not depend on."""
    with net.layer("idle", "dense"):
        net.parameter("weights", (3,), Constant(2.0))
    return dense(net, batch)


@pytest.mark.parametrize("strategy", ALL, ids=named)
def test_a_parameter_the_loss_does_not_depend_on_stays(strategy: Strategy, registry: Registry) -> None:
    weights, _ = trained(strategy, task_of(with_an_idle_parameter, Momentum(), batch_size=7), registry, 2)
    assert weights["idle/weights"].tolist() == [2.0, 2.0, 2.0]


def test_moving_averages_advance_by_their_decay(registry: Registry) -> None:
    task = task_of(NETWORKS["batch_normalised"], Sgd(), batch_size=8)
    with opened(Single(), task, registry) as trainer:
        trainer.session.run("init")
        start = trainer.weights()
        trainer.train([0])
        after = trainer.weights()
        image = Examples(8).read("train", 0, 0, 8)["x"]
    response = np.stack(
        [
            np.einsum("ncij,fcij->nf", image[:, :, i : i + 3, j : j + 3], start["conv1/weights"])
            for i in range(4)
            for j in range(4)
        ],
        axis=-1,
    )
    np.testing.assert_allclose(after["norm1/moving_mean"], 0.1 * response.mean((0, 2)), rtol=1e-12)
    np.testing.assert_allclose(after["norm1/moving_variance"], 0.9 + 0.1 * response.var((0, 2)), rtol=1e-12)


def test_variables_have_the_task_s_dtype() -> None:
    program = Single().build(task_of(dense, Momentum(), batch_size=7, dtype="float32"))
    assert {spec.dtype for spec in program.variables.values()} == {"float32"}
    assert program.variables["fc1/weights"] == TensorSpec((36, 8), "float32")
