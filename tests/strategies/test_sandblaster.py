"""``sandblaster`` equals ``single`` bit for bit, for any speeds of the replicas and any assignment of portions."""

from collections import Counter
from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.run.interleaving import Interleaving, VirtualTime
from runner.errors import ConfigError
from runner.optimizers import Lbfgs, Sgd
from runner.optimizers.lbfgs import History, X, iterate
from runner.strategies import Sandblaster, Single, Strategy, SyncData, Workload
from runner.strategies.lbfgs.dispatcher import Portions
from runner.strategies.lbfgs.vectors import PRODUCTS
from tests.all_pairs import all_pairs
from tests.optimizers.minimising import NumpyMachine, Vector
from tests.strategies.networks import NETWORKS, Examples, dense, workload_of
from tests.strategies.test_base import loss_and_gradients
from tests.strategies.training import Course, Weights, begun, expect_same_bits, iterated, speeds, trained

BATCH = 27
"""A batch size that the number of portions (parts of a batch) does not divide, so that portions differ in size."""

STEPS = 3
PER_EXAMPLE = sorted(set(NETWORKS) - {"batch_normalised"})


DECAY = 0.01


def workload_for(network: str = "dense", microbatches: int = 1, dtype: str = "float64") -> Workload:
    optimizer = Lbfgs(history=3, clip_norm=1.0, weight_decay=DECAY)
    return workload_of(network, optimizer, batch_size=BATCH, microbatches=microbatches, dtype=dtype)


@cache
def single(network: str, microbatches: int = 1, dtype: str = "float64") -> Course:
    return iterated(Single(), workload_for(network, microbatches, dtype), range(STEPS))


def blasted(
    network: str,
    workers: int,
    servers: int,
    portions: int = 8,
    interleaving: Interleaving | None = None,
    dtype: str = "float64",
) -> Course:
    """Return the results of a run of ``sandblaster``. portions: number of portions into which a batch is divided."""
    strategy = Sandblaster(workers=workers, servers=servers, portions_per_worker=portions // workers)
    workload = workload_for(network, dtype=dtype)
    return iterated(strategy, workload, range(STEPS), interleaving=interleaving)


def expect_same(found: Course, expected: Course) -> None:
    """Require the same objective in every iteration, and the same variables and history at the end."""
    assert found.iterations == expected.iterations
    expect_same_bits(found.weights, expected.weights)


@all_pairs(network=PER_EXAMPLE, workers=[1, 3, 4])
def test_sandblaster_equals_single_in_as_many_microbatches_bit_for_bit(network: str, workers: int) -> None:
    expect_same(blasted(network, workers, servers=1 + workers % 3, portions=12), single(network, 12))


@pytest.mark.parametrize("network", PER_EXAMPLE)
def test_the_objective_is_that_of_the_whole_batch(network: str) -> None:
    np.testing.assert_allclose(blasted(network, 3, 2, portions=9).iterations, single(network).iterations, rtol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sandblaster_in_other_precisions_differs_by_rounding(dtype: str) -> None:
    found, expected = blasted("dense", 2, 2, 4, dtype=dtype), single("dense", 4, dtype)
    np.testing.assert_allclose(found.iterations, expected.iterations, rtol=1e-3)


@pytest.mark.parametrize("slow_s", [3.0, 2000.0])
def test_a_slow_worker_changes_only_the_assignment(slow_s: float) -> None:
    found = blasted("dense", 3, 2, 9, speeds(1.0, slow_s, 1.0))
    expect_same(found, blasted("dense", 3, 2, 9, speeds(1.0, 1.0, 1.0)))
    assert found.duplicated > 0
    by = [worker for each in found.record["evaluations"] for worker in each["by"]]
    assert by.count(1) < by.count(0)


def test_a_worker_that_is_late_for_several_evaluations_computes_no_portion_of_them() -> None:
    found = blasted("dense", 2, 1, 4, speeds(1.0, 1e6))
    assert {worker for each in found.record["evaluations"] for worker in each["by"]} == {0}
    assert [each["fetches"] for each in found.record["evaluations"]] == [2] + [1] * (found.evaluations - 1)
    expect_same(found, single("dense", 4))


def drawn_speeds(seed: int) -> VirtualTime:
    """Return a clock with heavy-tailed random durations of portions and commands."""
    generator = np.random.default_rng(seed)

    def part_s(client: str, device: str, step: int) -> float:
        return float(generator.lognormal(sigma=1.5)) * (1.0 if client.startswith("compute") else 0.05)

    return VirtualTime(part_s, lambda nbytes: float(generator.lognormal(sigma=1.5)))


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_events_changes_no_bit(seed: int) -> None:
    expect_same(blasted("dense", 4, 2, 8, drawn_speeds(seed)), single("dense", 8))


def test_duplicated_portions_save_time_if_a_worker_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    with_backups = speeds(1.0, 100.0)
    blasted("dense", 2, 1, 4, with_backups)
    monkeypatch.setattr(Portions, "_again", lambda portions: None)
    without = speeds(1.0, 100.0)
    expect_same(blasted("dense", 2, 1, 4, without), single("dense", 4))
    # The virtual time includes the wait for late replicas at the end of the run.
    assert with_backups.now < 0.5 * without.now


def test_a_run_records_the_worker_of_each_portion() -> None:
    found = blasted("dense", 2, 1, 8, speeds(1.0, 1.0))
    evaluations = found.record["evaluations"]
    assert len(evaluations) == found.evaluations
    assert [each["step"] for each in evaluations] == sorted(each["step"] for each in evaluations)
    assert evaluations[0]["by"] == [0] * 4 + [1] * 4
    counted = sum(each["comm/duplicated_portions"] for each in found.metrics)
    assert counted == found.duplicated


@pytest.mark.parametrize("seconds", [(1.0, 1.0, 1.0), (1.0, 7.0, 1.0)])
def test_sent_bytes_are_those_of_the_formula(seconds: Sequence[float]) -> None:
    workers, servers, portions = 3, 2, 9
    found = blasted("dense", workers, servers, portions, speeds(*seconds))
    trained = sum(
        spec.nbytes
        for name, spec in found.program.variables.items()
        if name.count("/") == 1 and not name.startswith("lbfgs")
    )
    fetches = sum(each["fetches"] for each in found.record["evaluations"])
    computed = portions * found.evaluations + found.duplicated
    assert sum(found.sent[:workers]) == computed * trained
    assert sum(found.sent[workers:]) == fetches * trained
    if len(set(seconds)) == 1:
        assert fetches == workers * found.evaluations


def test_the_coordinator_exchanges_only_scalars() -> None:
    program = Sandblaster(servers=2).build(workload_for())
    graph = program.graph
    for client in program.training:
        scalars = [tensor for name, tensor in client.fetches.items() if name != PRODUCTS]
        scalars += [tensor for name, tensors in client.feeds.items() if name != PRODUCTS for tensor in tensors]
        assert {graph.spec(tensor).shape for tensor in scalars} <= {()}, client.name


def test_a_checkpoint_continues_under_single_and_sandblaster() -> None:
    undisturbed = iterated(Single(), workload_for("dropped_out", 6), range(6))
    first = iterated(Sandblaster(workers=3, servers=2, portions_per_worker=2), workload_for("dropped_out"), range(3))
    second = iterated(Sandblaster(portions_per_worker=3), workload_for("dropped_out"), range(3, 5), saved=first.weights)
    last = iterated(Single(), workload_for("dropped_out", 6), [5], saved=second.weights)
    assert first.iterations + second.iterations + last.iterations == undisturbed.iterations
    expect_same_bits(last.weights, undisturbed.weights)


def test_evaluation_uses_the_parameters_of_the_servers() -> None:
    scores = []
    for strategy in (Single(), Sandblaster(workers=3, servers=2, portions_per_worker=2)):
        with begun(strategy, workload_for(), single("dense", 6).weights) as trainer:
            scores.append(trainer.evaluate())
    one, three = scores
    np.testing.assert_allclose(one["loss"], three["loss"], rtol=1e-12)
    np.testing.assert_array_equal(one["predictions"], three["predictions"])


AVERAGES = (
    "^optimizer=lbfgs: the network has moving averages such as 'norm1/moving_mean', which would advance at every "
    "point of a line search; use a network without batch normalisation, or another optimizer$"
)


@pytest.mark.parametrize(
    ("strategy", "workload", "message"),
    [
        (
            Sandblaster(),
            workload_of(dense, Sgd(), batch_size=32),
            "optimizer=sgd with parallelism=sandblaster: expected L",
        ),
        (
            Sandblaster(workers=4),
            workload_for(),
            r"train\.batch_size=27 with 32 portions \(parallelism\.workers=4 times ",
        ),
        (Sandblaster(servers=7), workload_for(), r"parallelism\.servers=7: the network has 6 variables"),
        (Sandblaster(), workload_for("batch_normalised"), AVERAGES),
        (Single(), workload_for("batch_normalised"), AVERAGES),
        (SyncData(), workload_for(), "optimizer=lbfgs: its step needs more than one gradient"),
    ],
)
def test_untrainable_tasks_are_refused(strategy: Strategy, workload: Workload, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        strategy.build(workload)


@pytest.mark.parametrize(
    ("count", "workers", "events"),
    [
        pytest.param(6, 2, "1:3 0:0 0:1 1:4 0:2 1:5", id="a range of consecutive portions for each worker"),
        pytest.param(9, 3, "2:6 2:7 2:8 0:0 0:1 2:5 2:4 1:3", id="the last portion of the longest range"),
        pytest.param(3, 3, "1:1 0:0 2:2 -2 2:1 -0 0:1", id="the oldest unfinished portion, then the only portion left"),
        pytest.param(5, 5, "1:1 0:0 2:2 3:3 4:4 -3 -4 3:1 4:0 -0 0:2 4:1", id="fewest workers first"),
        pytest.param(2, 2, "0:0 1:1 -1 1:0 -0 !0 0:None", id="the first worker to finish counts"),
    ],
)
def test_portions_are_given_out_in_order(count: int, workers: int, events: str) -> None:
    """``W:P`` assigns portion P to worker W; ``-P`` and ``!P`` report the first and a further result for portion P."""
    portions, left = Portions(count, workers), set(range(count))
    for event in events.split():
        if event[0] in "-!":
            assert portions.finish(int(event[1:])) == (event[0] == "-")
            left.discard(int(event[1:]))
        else:
            worker, _, expected = event.partition(":")
            assert str(portions.give(int(worker))) == expected
        assert [portions.is_open(each) for each in range(count)] == [each in left for each in range(count)]
        assert portions.complete == (not left)


@given(st.integers(1, 12), st.integers(1, 5), st.randoms(use_true_random=False))
def test_each_portion_is_finished_once_at_any_speed(count: int, workers: int, random: object) -> None:
    portions, busy = Portions(count, workers), {}
    first: list[int] = []
    while not portions.complete:
        for worker in range(workers):
            if worker not in busy and (portion := portions.give(worker)) is not None:
                copies = Counter({each: 0 for each in range(count) if each not in first})
                copies.update(each for each in busy.values() if each in copies)
                assert copies[portion] == min(copies.values())
                busy[worker] = portion
        worker = random.choice(sorted(busy))  # type: ignore[attr-defined]
        if portions.finish(busy[worker]):
            first.append(busy[worker])
        del busy[worker]
    assert sorted(first) == list(range(count))


# ``optimizer=lbfgs`` under ``single``: the iterations of the algorithm on the objective of each batch.


def vector_of(weights: Weights, names: list[str]) -> Vector:
    return np.concatenate([weights[name].ravel() for name in names])


def test_iterations_equal_those_of_the_algorithm_in_numpy() -> None:
    initial, _ = trained(Single(), workload_for(), 0)
    names = [name for name in initial if name.count("/") == 1 and not name.startswith("lbfgs")]
    edges = np.cumsum([initial[name].size for name in names])[:-1]

    def objective(step: int, x: Vector) -> tuple[float, Vector]:
        parts = np.split(x, edges)
        weights = {name: part.reshape(initial[name].shape) for name, part in zip(names, parts, strict=True)}
        batch = Examples(BATCH).read("train", step, 0, BATCH)
        loss, _, gradients = loss_and_gradients(weights, batch["x"], batch["y"])
        for name in names:
            if name.endswith("weights"):
                loss += 0.5 * DECAY * float((weights[name] ** 2).sum())
                gradients[name] = gradients[name] + DECAY * weights[name]
        return loss, vector_of(gradients, names)

    machine, history = NumpyMachine(partial(objective, 0), vector_of(initial, names)), History(3)
    expected = []
    for step in range(8):
        machine.objective = partial(objective, step)
        expected.append(iterate(machine, history, longest=1.0, most=20).objective)
    found = iterated(Single(), workload_for(), range(8))
    np.testing.assert_allclose([each[2] for each in found.iterations], expected, rtol=1e-9)
    np.testing.assert_allclose(vector_of(found.weights, names), machine.vectors[X], atol=1e-8)
    assert int(found.weights["lbfgs/pairs"]) == history.pairs == 8
    np.testing.assert_allclose(found.weights["lbfgs/products"], [history.curvatures, history.squares], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_objective_also_falls_in_other_precisions(dtype: str) -> None:
    found = iterated(Single(), workload_for(dtype=dtype), [0] * 12)
    objectives = [each[2] for each in found.iterations]
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[-1] < 0.5 * objectives[0]
    assert {value.dtype.name for value in found.weights.values()} == {"float32", "float64", "int64"}
