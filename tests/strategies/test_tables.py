"""Tables of which a batch looks up a few rows: under all strategies, results agree with those of whole gradients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner import nn
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import Expr, NetworkBuilder, NetworkFunction, Outputs, Uniform, he_normal, local_cluster, ops
from runner.engine.run.kernel_table import load_kernels
from runner.fields import BEGINS, Field
from runner.models import Lstm
from runner.optimizers import Adagrad, Adam, HeavyBall, Lbfgs, Momentum, Optimizer, RmsProp, Sgd
from runner.optimizers.averages import WeightsAverage
from runner.optimizers.base import Rule
from runner.strategies import AsyncData, Hybrid, ModelParallel, Sandblaster, Single, SyncData, Workload
from runner.strategies.base import TrainingFacts
from runner.tasks.language import Language
from runner.tasks.regression import Regression
from tests.strategies.networks import TEST_BATCH, Batch, Source
from tests.strategies.training import (
    Placed,
    Weights,
    begun,
    compiled,
    difference,
    expect_like_single,
    expect_same_bits,
    outcome,
    rate_of,
)

ENTRIES, FEATURES, BATCH = 60, 5, 12
FIELDS = {"x": Field((3,), "int64"), "y": Field((2,))}


class Words(Source):
    """A source of three words and two numbers; the first five words appear often."""

    def draw(self, rng: np.random.Generator, size: int, step: int, test: bool) -> dict[str, NDArray[Any]]:
        x = np.where(rng.random((size, 3)) < 0.5, rng.integers(0, 5, (size, 3)), rng.integers(0, ENTRIES, (size, 3)))
        return {"x": x, "y": np.stack([np.sin(x).sum(axis=1), (x % 2).sum(axis=1)], axis=1)}


def bag(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network that looks up two tables; one of them twice, with indices of different shapes."""
    graph = net.graph
    with net.layer("words", "embedding"):
        table = net.parameter("table", (ENTRIES, FEATURES), he_normal(4), decayed=True)
        first = ops.reshape(
            graph, ops.slice(graph, batch["x"], begin=(0, 0), size=(graph.spec(batch["x"]).shape[0], 1)), (-1,)
        )
        own, around = net.lookup(table, first), ops.reduce_sum(graph, net.lookup(table, batch["x"]), axes=(1,))
        h = net.output(ops.mul(graph, own, around))
    h = nn.add(net, h, nn.embedding(net, first, ENTRIES, FEATURES, name="other"), name="sum")
    return Regression().score(net, nn.dense(net, h, 2, name="fc"), batch)


def whole(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build the same network with gradients of the size of the tables."""
    net.lookup = lambda table, indices: ops.gather(net.graph, table.tensor, indices)  # type: ignore[method-assign]
    return bag(net, batch)


def tied(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network that looks up a table and also multiplies by it."""
    graph = net.graph
    with net.layer("words", "embedding"):
        table = net.parameter("table", (ENTRIES, FEATURES), he_normal(400))
        h = ops.reduce_sum(graph, net.lookup(table, batch["x"]), axes=(1,))
        h = net.output(ops.matmul(graph, h, table.tensor, transpose_b=True))
    return Regression().score(net, nn.dense(net, h, 2, name="fc"), batch)


def workload_of(optimizer: Optimizer, network: Any = bag, microbatches: int = 1) -> Workload:
    return Workload(network, optimizer, FIELDS, "float64", 7, BATCH, TEST_BATCH, microbatches)


def weights_of(strategy: Any, workload: Workload) -> Weights:
    """Return the weights after three steps."""
    return outcome(strategy, workload, source=Words(BATCH)).weights


def ops_of(strategy: Any, workload: Workload) -> list[str]:
    """Return the ops of a compiled training step."""
    return [node.op for part in compiled(strategy.build(workload)).parts.values() for node in part.graph]


EXACT = {
    "sgd": Sgd(),
    "clipped": Sgd(clip_norm=0.3),
    "adagrad": Adagrad(clip_norm=0.5),
    "without decay of tables": Sgd(weight_decay=0.1, rules=[{"match": "*table", "weight_decay": 0.0}]),
}
CHANGING = {
    "momentum": Momentum(),
    "nesterov": HeavyBall(nesterov=True),
    "adam": Adam(),
    "rmsprop": RmsProp(),
    "decay": Sgd(weight_decay=0.1),
    "decoupled": Adagrad(weight_decay=0.1, decoupled_weight_decay=True),
    "average": Sgd(average=WeightsAverage(decay=0.9)),
}


@pytest.mark.parametrize("name", sorted(EXACT | CHANGING))
def test_rows_give_the_results_of_whole_gradients(name: str) -> None:
    optimizer = (EXACT | CHANGING)[name]
    found, expected = (
        outcome(Single(), workload_of(optimizer, network), source=Words(BATCH)) for network in (bag, whole)
    )
    assert difference(found.weights, expected.weights) < 1e-12
    assert found.losses == pytest.approx(expected.losses, rel=1e-12)
    assert ("put_rows" in ops_of(Single(), workload_of(optimizer))) is (name in EXACT)


@pytest.mark.parametrize("name", sorted(CHANGING))
def test_a_lazy_update_changes_only_the_rows_of_the_batch_by_the_rule(name: str) -> None:
    lazy = replace(CHANGING[name], lazy=True)
    with (
        begun(Single(), workload_of(lazy), source=Words(BATCH)) as trainer,
        begun(Single(), workload_of(CHANGING[name]), source=Words(BATCH)) as other,
    ):
        for step in range(3):
            before = dict(trainer.weights())
            other.restore(before)
            trainer.step_driver.update(step, rate_of(step, "float64"))
            other.step_driver.update(step, rate_of(step, "float64"))
            after, expected = trainer.weights(), other.weights()
            x = Words(BATCH).read("train", step, 0, BATCH)["x"]
            for key, value in after.items():
                if "table" not in key:
                    np.testing.assert_allclose(value, expected[key], rtol=1e-12, atol=1e-14)
                    continue
                touched = np.isin(np.arange(ENTRIES), x if key.startswith("words") else x[:, 0])
                np.testing.assert_allclose(value[touched], expected[key][touched], rtol=1e-12, atol=1e-14, err_msg=key)
                np.testing.assert_array_equal(value[~touched], before[key][~touched], err_msg=key)


def test_a_table_that_is_also_read_whole_has_a_whole_gradient() -> None:
    strategies = [Single(), SyncData(workers=2), SyncData(workers=2, combine="parameter_server", servers=2)]
    plain = workload_of(Sgd(), tied)
    weights = [weights_of(strategy, plain) for strategy in strategies]
    for found in weights[1:]:
        assert difference(found, weights[0]) < 1e-12
    assert "put_rows" not in ops_of(Single(), plain)


def looking_up(entries: int, features: int = 8, **settings: Any) -> NetworkFunction:
    """Return a network that adds the vectors of the words of an example, and a dense layer without bias."""

    def network(net: NetworkBuilder, batch: Batch) -> Outputs:
        rows = nn.embedding(net, batch["x"], entries, features, name="words", **settings)
        h = ops.reduce_sum(net.graph, rows, axes=(1,))
        return Regression().score(net, nn.dense(net, h, 2, name="fc", bias=None), batch)

    return network


@pytest.mark.parametrize(("entries", "lazy", "held"), [(36, False, False), (37, False, True), (36, True, True)])
def test_a_gradient_holds_rows_if_a_batch_has_fewer_indices_than_the_table_has_rows(
    entries: int, lazy: bool, held: bool
) -> None:
    workload = workload_of(Sgd(lazy=lazy), looking_up(entries))
    for strategy in (Single(), SyncData(workers=3)):
        assert ("put_rows" in ops_of(strategy, workload)) is held


SERVERS = {f"servers {s}": SyncData(workers=2, combine="parameter_server", servers=s) for s in (1, 2, 4)}
STRATEGIES = {
    **SERVERS,
    "reduce": SyncData(workers=3),
    "held back": SyncData(workers=2, overlap=False),
    "ring": SyncData(workers=3, combine="ring_all_reduce"),
    "all reduce": SyncData(workers=2, combine="all_reduce"),
    "model": Placed(ModelParallel(workers=2)),
    "pipeline": Placed(ModelParallel(workers=2, concurrent_steps=3)),
    "shards": Placed(ModelParallel(workers=2, shard={"fc": "column"})),
    "downpour": AsyncData(workers=1, loop="direct"),
    "hybrid": Hybrid(workers=3, scheme="b"),
}


@pytest.mark.parametrize("optimizer", [Adagrad(clip_norm=0.5), Momentum(lazy=True), Adam()], ids=lambda o: o.name)
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_strategies_train_tables_like_single(name: str, optimizer: Optimizer) -> None:
    if not getattr(STRATEGIES[name], "keeps_rows", True):
        optimizer = replace(optimizer, lazy=False)
    expect_like_single(STRATEGIES[name], workload_of(optimizer), Words(BATCH))


def normalised(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network that normalises the sums of the vectors of words."""
    rows = nn.embedding(net, batch["x"], ENTRIES, FEATURES, name="words")
    h = nn.batch_norm(net, ops.reduce_sum(net.graph, rows, axes=(1,)), name="norm")
    return Regression().score(net, nn.dense(net, h, 2, name="fc"), batch)


def partly_fixed(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network that looks up the words of the batch and, in every share, the same ten words."""
    graph = net.graph
    with net.layer("words", "embedding"):
        table = net.parameter("table", (80, FEATURES), he_normal(4))
        own = ops.reduce_sum(graph, net.lookup(table, batch["x"]), axes=(1,))
        fixed = ops.reduce_mean(graph, net.lookup(table, ops.constant(graph, np.arange(10))), axes=(0,), keepdims=True)
        h = net.output(ops.add(graph, own, fixed))
    return Regression().score(net, nn.dense(net, h, 2, name="fc"), batch)


@pytest.mark.parametrize("combine", ["sharded_reduce", "parameter_server"])
def test_rows_of_large_shares_and_whole_gradients_of_small_shares_are_added(combine: str) -> None:
    """By the rule, a batch has 36 + 40 indices for shares of three examples, and 36 + 60 for shares of two."""
    expect_like_single(SyncData(workers=5, combine=combine), workload_of(Sgd(), partly_fixed), Words(BATCH))


@pytest.mark.parametrize("combine", [{"combine": "sharded_reduce"}, {"combine": "parameter_server", "servers": 2}])
def test_pooled_statistics_train_tables_like_single(combine: dict[str, Any]) -> None:
    pooled = SyncData(workers=2, statistics="pooled", **combine)
    expect_like_single(pooled, workload_of(Adagrad(), normalised), Words(BATCH))


def test_sandblaster_trains_tables_like_single() -> None:
    expect_like_single(Sandblaster(workers=2, portions_per_worker=2), workload_of(Lbfgs(history=3)), Words(BATCH))


@pytest.mark.parametrize("name", ["reduce", "servers 2"])
def test_workers_add_rows_like_microbatches_bit_for_bit(name: str) -> None:
    strategy = STRATEGIES[name]
    found = weights_of(strategy, workload_of(Adagrad()))
    expect_same_bits(found, weights_of(Single(), workload_of(Adagrad(), microbatches=strategy.workers)))


def test_averages_of_rows_are_evaluated() -> None:
    def loss(strategy: Any, network: Any) -> float:
        workload = workload_of(Sgd(average=WeightsAverage(decay=0.9)), network)
        with begun(strategy, workload, source=Words(BATCH)) as trainer:
            drawn = {
                name: np.random.default_rng(number).standard_normal(value.shape)
                for number, (name, value) in enumerate(sorted(trainer.weights().items()))
            }
            trainer.restore(drawn)
            return float(trainer.evaluate()["loss"])

    expected = loss(Single(), whole)
    for strategy in (Single(), *SERVERS.values()):
        assert loss(strategy, bag) == pytest.approx(expected, rel=1e-11)


class Drifting(Sgd):
    """A rule that changes all elements."""

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Return the rule w <- w - g * rate - 0.1."""
        usual = super().rule(learning_rate, step)
        return lambda w, g: [(state, value - 0.1) for state, value in usual(w, g)]


def test_an_optimizer_does_not_inherit_that_it_keeps_rows() -> None:
    found, expected = (weights_of(Single(), workload_of(Drifting(), network)) for network in (bag, whole))
    assert difference(found, expected) < 1e-12


def test_strategies_that_need_whole_gradients_refuse_a_lazy_optimizer() -> None:
    facts = TrainingFacts(Momentum(lazy=True), BATCH, TEST_BATCH, 1, False, "none")
    for strategy in (AsyncData(workers=1), Hybrid(workers=2)):
        assert any("optimizer.lazy=true with parallelism=" in fault for fault in strategy.faults(facts))
    pooled = SyncData(workers=2, statistics="pooled")
    assert any("and parallelism.statistics=pooled: grad" in fault for fault in pooled.faults(facts))
    assert not [*SyncData(workers=2).faults(facts), *Single().faults(facts)]


class Sentences(Source):
    """A source of five words and the words that follow them."""

    def draw(self, rng: np.random.Generator, size: int, step: int, test: bool) -> dict[str, NDArray[Any]]:
        words = rng.integers(0, 20, (size, 6))
        return {"x": words[:, :-1], "y": words[:, 1:], BEGINS: np.full(size, int(step == 0))}


def sampled(count: int) -> Workload:
    """Return the workload of a language model with ``count`` words and a sampled softmax."""
    words = tuple(map(str, range(count)))
    fields = {"x": Field((5,), "int64", words), "y": Field((5,), "int64", words), BEGINS: Field((), "int64")}
    network = Language(loss="sampled_softmax", samples=4).network(Lstm(units=[4], embedding=3), fields)
    return Workload(network, Adagrad(), fields, "float64", 7, BATCH, TEST_BATCH)


@pytest.mark.parametrize("name", ["reduce", "servers 2"])
def test_a_sampled_softmax_sends_and_updates_only_the_rows_of_its_words(name: str) -> None:
    workload, sent = sampled(400), []
    expect_like_single(STRATEGIES[name], workload, Sentences(BATCH))
    for each in (workload, sampled(80)):
        with begun(STRATEGIES[name], each, source=Sentences(BATCH)) as trainer:
            sent.append(sum(trainer.sent([0])))
    assert sent[0] == sent[1]
    # The tables of the embedding and of the softmax, its bias, and the slot of each.
    assert ops_of(Single(), workload).count("put_rows") == 6


def _bytes_of(strategy: SyncData, entries: int) -> list[int]:
    with begun(strategy, workload_of(Sgd(), looking_up(entries)), source=Words(BATCH)) as trainer:
        return trainer.sent([0])


def test_only_rows_and_indices_are_sent() -> None:
    ids, row, weights = 3 * BATCH // 2, 8 * 8, 8 * 2 * 8
    metrics = 2 * 8
    for entries in (60, 1000):
        found = _bytes_of(SyncData(workers=2, combine="sharded_reduce"), entries)
        # Each worker sends its rows and indices, and the gradient of the dense layer.
        assert found == [ids * (row + 8) + weights, ids * (row + 8) + weights + metrics]
        for servers in (1, 2):
            strategy = SyncData(workers=2, combine="parameter_server", servers=servers)
            found = _bytes_of(strategy, entries)
            # Both workers send indices to every server, receive rows, and send gradients of rows.
            assert sum(found) == 2 * ids * (2 * row + 8 * servers) + 2 * 2 * weights + metrics


def planned(entries: int, **options: Any) -> tuple[dict[str, int], float]:
    """Return the bytes of the arenas of each client, and the estimated seconds of a training step."""
    network = looking_up(entries, 1024, initializer=Uniform(-1.0, 1.0))
    workload = replace(workload_of(Adagrad(clip_norm=1.0), network), dtype="float32")
    strategy = SyncData(workers=2, combine="parameter_server", **options) if options else Single()
    program = strategy.build(workload)
    plans = ProgramPlans(program, local_cluster(program.workers, program.servers), load_kernels())
    arenas = {
        f"{name} {device}": plan.arena_bytes
        for name in ("train", "eval", "init")
        for device, plan in plans.plans(program.clients[name].signature).items()
    }
    return arenas, plans.compiled(program.clients["train"].signature).step_s


@pytest.mark.parametrize("options", [{}, {"servers": 4}], ids=["single", "servers"])
def test_a_step_of_a_table_of_16_gb_is_planned_like_that_of_a_small_table(options: dict[str, Any]) -> None:
    """The tables have 256 KB and 16 GB of 4 KB rows (TensorFlow, OSDI 2016, section 6.1)."""
    small, large = planned(64, **options), planned(1 << 22, **options)
    assert small[0] == large[0]
    assert small[1] == pytest.approx(large[1], rel=1e-12)
    assert max(large[0].values()) < 4 << 20
