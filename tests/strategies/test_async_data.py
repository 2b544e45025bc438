"""``async_data``: one worker equals ``single``; in virtual time, every run can be repeated bit for bit."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from runner.engine.graph import worker_device
from runner.engine.run.interleaving import virtual_time
from runner.errors import ConfigError
from runner.optimizers import Adagrad, Adam, Momentum, Optimizer, Sgd
from runner.strategies import AsyncData, Workload
from runner.strategies.downpour.pushed_server import Staleness
from tests.all_pairs import all_pairs
from tests.strategies.networks import NETWORKS, workload_of
from tests.strategies.training import (
    Run,
    Trainer,
    Weights,
    begun,
    difference,
    expect_same_bits,
    expect_same_run,
    opened,
    single,
    trained,
)

STEPS = 4

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Sgd(weight_decay=1e-3),
    "momentum": Momentum(clip_norm=0.5),
    "adam": Adam(),
    "adagrad": Adagrad(),
}


def workload_for(network: str, optimizer: str = "momentum", dtype: str = "float64", seed: int = 7) -> Workload:
    return workload_of(network, OPTIMIZERS[optimizer], dtype=dtype, seed=seed)


def in_order(run: Run) -> Run:
    """Return a run with its variables in the order of their names."""
    return dict(sorted(run[0].items())), run[1]


def expect_single(strategy: AsyncData, workload: Workload) -> None:
    """Require the weights and history of ``single`` bit for bit; the order of the variables is ignored."""
    expect_same_run(in_order(trained(strategy, workload, STEPS)), in_order(single(workload, STEPS)))


@all_pairs(network=sorted(NETWORKS), optimizer=sorted(OPTIMIZERS), loop=["sequential", "direct"])
def test_one_worker_that_fetches_after_every_push_equals_single_bit_for_bit(
    network: str, optimizer: str, loop: str
) -> None:
    expect_single(AsyncData(workers=1, servers=2, loop=loop), workload_for(network, optimizer))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_precisions_equal_single_bit_for_bit(dtype: str) -> None:
    expect_single(AsyncData(workers=1, loop="sequential"), workload_for("convolutional", "adagrad", dtype))


@pytest.mark.parametrize(
    ("staleness", "servers"), [(Staleness("drop", 0), 1), (Staleness("scale"), 3), (Staleness("bounded", 0), 1)]
)
def test_no_policy_changes_gradients_that_are_not_stale(staleness: Staleness, servers: int) -> None:
    strategy = AsyncData(workers=1, servers=servers, loop="sequential", staleness=staleness)
    expect_single(strategy, workload_for("batch_normalised", "adam"))


VARIANTS: dict[str, dict[str, Any]] = {
    "overlapped": {},
    "sequential": {"loop": "sequential"},
    "direct": {"loop": "direct"},
    "rare": {"n_fetch": 3, "n_push": 2},
    "warm": {"warmstart_steps": 2},
    "bounded": {"staleness": Staleness("bounded", 1)},
    "drop": {"loop": "sequential", "staleness": Staleness("drop", 2)},
    "scale": {"loop": "sequential", "staleness": Staleness("scale")},
}


def virtual(workers: int, variant: str, **more: Any) -> AsyncData:
    return AsyncData(workers=workers, servers=2, virtual_time=True, **VARIANTS[variant], **more)


@cache
def run_of(workers: int, variant: str, seed: int, again: int = 0) -> tuple[Weights, list[Any], Any]:
    """Return weights, history and record of a run. again: another number repeats the run despite the cache."""
    with begun(virtual(workers, variant), workload_for("batch_normalised", "adagrad", seed=seed)) as trainer:
        history = trainer.train(range(STEPS))
        return trainer.weights(), history, trainer.step_driver.record()


@pytest.mark.parametrize(("workers", "variant"), [(1, "sequential"), (4, "overlapped"), (3, "rare")])
def test_a_run_in_virtual_time_can_be_repeated_bit_for_bit(workers: int, variant: str) -> None:
    weights, history, record = run_of(workers, variant, 7)
    again, history_again, record_again = run_of(workers, variant, 7, again=1)
    expect_same_bits(weights, again)
    assert (history, record) == (history_again, record_again)
    assert sum(record["replica_steps"]) >= workers * STEPS


def turns_of(seed: int, variant: str = "overlapped") -> list[tuple[str, int]]:
    """Return (client, step) for each client that ends, in the order of the ends."""
    with begun(virtual(3, variant), workload_for("dense", seed=seed)) as trainer:
        ended: list[tuple[str, int]] = []
        finished = trainer.session.finished

        def noted() -> Any:
            each = finished()
            ended.append((each.client, each.step))
            return each

        trainer.session.finished = noted  # type: ignore[method-assign]
        trainer.train(range(6))
        return ended


def most_ahead(turns: list[tuple[str, int]]) -> int:
    """Return the largest lead of one of three replicas over the slowest one, in finished steps."""
    finished = dict.fromkeys(("compute_0", "compute_1", "compute_2"), 0)
    most = 0
    for client, _ in turns:
        if client in finished:
            finished[client] += 1
            most = max(most, max(finished.values()) - min(finished.values()))
    return most


def test_the_lead_of_a_bounded_replica_exceeds_the_limit_by_at_most_one_step() -> None:
    assert max(most_ahead(turns_of(seed, "bounded")) for seed in range(4)) == 2
    assert most_ahead(turns_of(0)) == 4


def test_other_seeds_give_other_interleavings() -> None:
    assert turns_of(1) == turns_of(1)
    assert turns_of(1) != turns_of(2)


def test_several_workers_end_with_other_weights_than_single() -> None:
    weights, _, record = run_of(3, "overlapped", 7)
    expected, _ = single(workload_for("batch_normalised", "adagrad"), STEPS)
    assert difference(weights, {name: expected[name] for name in weights}) > 1e-3
    assert max(int(staleness) for shard in record["staleness"] for staleness in shard) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_the_loss_falls(variant: str) -> None:
    with begun(virtual(3, variant), workload_for("dense", "adagrad")) as trainer:
        rate = np.asarray(0.1)
        losses = [float(trainer.step_driver.update(step, rate)["loss"]) for step in range(80)]
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:5])


def bytes_of(trainer: Trainer, *, statistics: bool) -> list[int]:
    """Return the bytes of each shard: of its parameters or, with ``statistics``, of a push to the shard."""
    kept = {node.name: node.device for node in trainer.program.graph if node.op == "variable"}
    network = {name: spec.nbytes for name, spec in trainer.program.variables.items() if "/squares" not in name}
    sums = [0] * trainer.program.servers
    for name, nbytes in network.items():
        if statistics or "moving" not in name:
            sums[int(kept[name].split("task:")[1].split("/")[0])] += nbytes
    return sums


@all_pairs(network=["dense", "batch_normalised"], loop=["overlapped", "sequential", "direct"], servers=[1, 3])
def test_bytes_of_every_client_are_those_of_the_formula(network: str, loop: str, servers: int) -> None:
    strategy = AsyncData(workers=2, servers=servers, loop=loop)
    with opened(strategy, workload_for(network, "adagrad")) as trainer:
        trained_bytes, pushed_bytes = (bytes_of(trainer, statistics=each) for each in (False, True))
        for k in range(2):
            computing = trainer.session.plans(f"compute_{k}")
            for shard in range(servers):
                server, worker = f"/job:ps/task:{shard}/device:cpu:0", f"/job:worker/task:{k}/device:cpu:0"
                if loop == "direct":
                    assert computing[server].sent_bytes == trained_bytes[shard] + 8
                else:
                    assert computing.keys() == {worker}
                    fetching = trainer.session.plans(f"fetch_{k}_{shard}")
                    assert {d: p.sent_bytes for d, p in fetching.items()} == {
                        server: trained_bytes[shard] + 8,
                        worker: 0,
                    }
                pushing = trainer.session.plans(f"push_{k}_{shard}")
                assert {d: p.sent_bytes for d, p in pushing.items()} == {worker: pushed_bytes[shard] + 8, server: 0}


def test_a_run_counts_the_bytes_of_its_fetches_and_pushes() -> None:
    strategy = AsyncData(workers=1, servers=2, n_fetch=2, n_push=3, loop="sequential")
    with begun(strategy, workload_for("batch_normalised", "adagrad")) as trainer:
        counted = trainer.sent(range(6))
        trained_bytes, pushed_bytes = (bytes_of(trainer, statistics=each) for each in (False, True))
    assert counted == [2 * (sum(pushed_bytes) + 16), *(3 * (nbytes + 8) for nbytes in trained_bytes)]


def test_gradients_between_pushes_are_summed_and_applied_locally() -> None:
    """Compare one push, after two steps on a locally updated copy, with the gradients of ``single``."""
    workload = workload_of("dense", Sgd())
    strategy = AsyncData(workers=1, n_fetch=2, n_push=2, loop="sequential")
    weights, _ = trained(strategy, workload, 2)
    start, after_one, after_two = (single(workload, steps)[0] for steps in (0, 1, 2))
    for name, value in start.items():
        gradients = [(value - after_one[name]) / 0.1, (after_one[name] - after_two[name]) / 0.05]
        np.testing.assert_allclose(weights[name], value - 0.05 * sum(gradients), rtol=0, atol=1e-12)


def test_moving_averages_advance_once_for_each_push_by_the_mean_statistics() -> None:
    """The learning rate is 0, so the convolution has the same weights in both steps."""
    still = Sgd(lr=1e-9)
    workload = workload_of("batch_normalised", still)
    averages = []
    for n_push in (1, 2):
        with begun(AsyncData(workers=1, n_push=n_push, loop="sequential"), workload) as trainer:
            before = trainer.weights()["norm1/moving_mean"]
            seen = [before]
            for step in range(2):
                trainer.step_driver.update(step, np.asarray(0.0))
                seen.append(trainer.weights()["norm1/moving_mean"])
            averages.append(seen)
    one_by_one, at_once = averages
    np.testing.assert_array_equal(at_once[1], at_once[0])
    decay = 0.9
    statistics = [(one_by_one[i + 1] - decay * one_by_one[i]) / (1 - decay) for i in range(2)]
    expected = decay**2 * at_once[0] + (1 - decay**2) * (statistics[0] + statistics[1]) / 2
    np.testing.assert_allclose(at_once[2], expected, rtol=1e-9)


@pytest.mark.parametrize("network", [pytest.param("batch_normalised", marks=pytest.mark.slow), "dropped_out"])
@pytest.mark.parametrize(("workers", "variant"), [(1, "rare"), *((3, each) for each in VARIANTS)])
def test_a_run_in_virtual_time_continues_from_a_checkpoint_bit_for_bit(
    workers: int, variant: str, network: str
) -> None:
    workload, strategy = workload_for(network, "adam"), virtual(workers, variant)
    with begun(strategy, workload) as trainer:
        trainer.train(range(STEPS))
        trainer.step_driver.begin_again()
        saved = trainer.weights()
        history = trainer.train(range(STEPS, 2 * STEPS))
        undisturbed = trainer.weights()
        assert sum(trainer.step_driver.record()["replica_steps"]) >= 2 * STEPS * workers
    expect_same_run(trained(strategy, workload, range(STEPS, 2 * STEPS), saved), (undisturbed, history))


def test_accumulated_gradients_at_a_checkpoint_are_applied() -> None:
    """If a replica fetches before every step, a checkpoint before the first push has the same effect as that push."""
    workload, weights = workload_for("dense", "adagrad"), []
    for n_push in (2, 3):
        strategy = AsyncData(workers=1, servers=2, n_fetch=1, n_push=n_push, loop="sequential")
        with begun(strategy, workload) as trainer:
            trainer.train(range(2))
            trainer.step_driver.begin_again()
            weights.append(trainer.weights())
            assert [sum(each.values()) for each in trainer.step_driver.record()["staleness"]] == [1, 1]
    expect_same_bits(*weights)


def test_fetches_and_pushes_are_compressed() -> None:
    """All of a message except a scalar is sent in half as many bytes, and the weights differ slightly."""
    workload = workload_for("dense", "sgd", "float32")
    strategy = AsyncData(workers=1, loop="sequential")
    with begun(strategy, workload, compression="high16") as trainer:
        halves = [trainer.session.plans(name)[d].sent_bytes for name, d in SENDERS]
        history = trainer.train(range(3))
        lossy = trainer.weights()
    with opened(strategy, workload) as trainer:
        wholes = [trainer.session.plans(name)[d].sent_bytes for name, d in SENDERS]
    assert [2 * half - 8 for half in halves] == wholes
    exact, reference = trained(strategy, workload, 3)
    assert 0 < difference(lossy, exact) < 0.02
    np.testing.assert_allclose(history, reference, rtol=0.05)


SENDERS = [("fetch_0_0", "/job:ps/task:0/device:cpu:0"), ("push_0_0", "/job:worker/task:0/device:cpu:0")]


@pytest.mark.parametrize(
    ("schema", "settings", "message"),
    [
        (AsyncData, {"loop": "threads"}, "loop='threads': expected one of overlapped, sequential, direct"),
        (AsyncData, {"loop": "direct", "n_push": 2}, "n_fetch=1 and n_push=2 with loop=direct: a replica without a"),
        (AsyncData, {"virtual_time": True, "replay": "x"}, "virtual_time=true with replay=x: a replay follows"),
        (Staleness, {"policy": "late"}, "staleness.policy='late': expected one of none, bounded, drop, scale"),
        (Staleness, {"policy": "drop"}, "staleness.limit=null with policy=drop: expected 0 or more"),
        (Staleness, {"policy": "scale", "limit": 2}, "staleness.limit=2 with policy=scale: only bounded and drop"),
    ],
)
def test_contradictory_settings_are_refused(schema: type[Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schema(**settings)
    assert str(caught.value).startswith(f"parallelism.{message}")


def test_virtual_time_is_the_same_on_every_type_of_device() -> None:
    alone = AsyncData(workers=3, virtual_time=True).build(workload_for("dense")).one_process
    clock = virtual_time(alone.clock)
    on_cpu, on_gpu = (
        [clock._part_s(f"compute_{k}", worker_device(k, kind), 3) for k in range(3)] for kind in ("cpu", "gpu")
    )
    assert on_cpu == on_gpu
    assert len(set(on_cpu)) == 3
