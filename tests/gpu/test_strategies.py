"""Every strategy on logical devices of one GPU equals ``single`` on CPUs.

Tolerances after six steps without tf32: in float64 1e-9 for weights and losses; in float32 2e-5 for weights and 1e-4
for losses. On the emulated GPU, only the project's own kernels run.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from runner.engine.run.kernel_table import load_kernels
from runner.kernels.registry import Registry
from runner.optimizers import Adam, Lbfgs, Momentum, Optimizer
from runner.strategies import AsyncData, Hybrid, ModelParallel, Sandblaster, Single, Strategy, SyncData, Workload
from tests.gpu.gpus import Gpu, on_gpu
from tests.strategies.networks import NETWORKS, hybrid, workload_of
from tests.strategies.training import Placed, Weights, begun, difference, expect_same_bits, iterated, trained

STEPS = 6
BATCH = 13
"""A prime number, so that no number of workers divides it."""

TOLERANCES = {"float64": (1e-9, 1e-9), "float32": (2e-5, 1e-4)}
"""Absolute tolerance of weights, and relative tolerance of losses and accuracies."""

ALL = {**NETWORKS, "hybrid": hybrid}

Made = Callable[[Registry], Strategy]


def placed(registry: Registry) -> Placed:
    """Return model parallelism with layers spread over three devices."""
    near = on_gpu(3, latency_s=1e-9, bytes_per_s=1e15)
    return Placed(ModelParallel(workers=3), near, registry=registry)


def made(strategy: Strategy) -> Made:
    return lambda registry: strategy


PER_EXAMPLE: Mapping[str, Made] = {
    "sync_data": made(SyncData(workers=3)),
    "ring_of_2": made(SyncData(workers=2, combine="ring_all_reduce")),
    "ring_of_4": made(SyncData(workers=4, combine="ring_all_reduce")),
    "parameter_server": made(SyncData(workers=3, combine="parameter_server", servers=2)),
}
"""Strategies that normalize each worker's part of the batch alone; without batch normalization, equal to ``single``."""

POOLED: Mapping[str, Made] = {
    "single": made(Single()),
    "hybrid_a": made(Hybrid(workers=3, scheme="a", statistics="pooled")),
    "hybrid_b": made(Hybrid(workers=3, scheme="b", statistics="pooled")),
    "hybrid_c": made(Hybrid(workers=3, scheme="c", statistics="pooled")),
    "model": placed,
    "async_data": made(AsyncData(workers=1, servers=2, loop="sequential")),
}
"""Strategies that equal ``single`` on all networks."""

SMALL = {
    ("sync_data", "hybrid", "float64"): [pytest.mark.small, pytest.mark.slow],
    ("hybrid_b", "hybrid", "float32"): [pytest.mark.small, pytest.mark.slow],
    ("model", "batch_normalised", "float64"): [pytest.mark.small],
}
"""Strategy, network and dtype of the cases that the suite runs on the emulated GPU."""


def cases() -> list[Any]:
    """Return every strategy with every network on which it must equal ``single``, in every dtype."""
    mixing = "batch_normalised"
    pairs = [(s, n) for s in PER_EXAMPLE for n in sorted(ALL) if n != mixing] + [(s, n) for s in POOLED for n in ALL]
    triples = [(strategy, network, dtype) for strategy, network in pairs for dtype in TOLERANCES]
    return [pytest.param(*triple, id="-".join(triple), marks=SMALL.get(triple, [])) for triple in triples]


def momentum() -> Optimizer:
    """Return an optimizer with slots, weight decay and active clipping."""
    return Momentum(weight_decay=1e-3, clip_norm=0.5)


def workload_for(network: str, dtype: str, microbatches: int = 1, optimizer: Optimizer | None = None) -> Workload:
    chosen = optimizer or momentum()
    return workload_of(ALL[network], chosen, batch_size=BATCH, microbatches=microbatches, dtype=dtype)


@cache
def on_cpus(network: str, dtype: str) -> tuple[Weights, list[Any]]:
    return trained(Single(), workload_for(network, dtype), STEPS)


def expect_near(found: tuple[Weights, list[Any]], expected: tuple[Weights, list[Any]], dtype: str) -> None:
    """Require the same variables, in any order, and the same history, up to the tolerances."""
    of_weights, of_losses = TOLERANCES[dtype]
    (weights, history), (known, reference) = found, expected
    assert difference({name: weights[name] for name in known}, known) <= of_weights
    assert set(weights) == set(known)
    np.testing.assert_allclose(history, reference, rtol=of_losses)


@pytest.mark.parametrize(("strategy", "network", "dtype"), cases())
def test_a_strategy_equals_single_on_cpus(gpu: Gpu, strategy: str, network: str, dtype: str) -> None:
    registry = gpu.registry()
    chosen = {**PER_EXAMPLE, **POOLED}[strategy](registry)
    found = trained(chosen, workload_for(network, dtype), STEPS, registry=registry, gpus=True)
    expect_near(found, on_cpus(network, dtype), dtype)


@pytest.mark.parametrize("dtype", sorted(TOLERANCES))
@pytest.mark.parametrize("network", ["dense", "convolutional", "dropped_out"])
def test_workers_equal_microbatches_bit_for_bit(gpu: Gpu, network: str, dtype: str) -> None:
    """Kernels, shapes and the order of sums are the same, so the placement changes no bit."""
    registry = gpu.registry()
    found = trained(SyncData(workers=3), workload_for(network, dtype), STEPS, registry=registry, gpus=True)
    expected = trained(Single(), workload_for(network, dtype, microbatches=3), STEPS, registry=registry, gpus=True)
    expect_same_bits(found[0], expected[0])
    assert found[1] == expected[1]


@pytest.mark.parametrize("network", [pytest.param("batch_normalised", marks=[pytest.mark.small]), "dropped_out"])
def test_recomputation_changes_no_bit(gpu: Gpu, network: str) -> None:
    registry, workload = gpu.registry(), workload_for(network, "float32")
    recomputed = replace(workload, recompute=("norm", "activation", "regularizer"))
    found, expected = (trained(Single(), each, 2, registry=registry, gpus=True) for each in (recomputed, workload))
    expect_same_bits(found[0], expected[0])
    assert found[1] == expected[1]


@pytest.mark.parametrize(
    "network", ["convolutional", pytest.param("hybrid", marks=[pytest.mark.small, pytest.mark.slow])]
)
def test_bfloat16_gives_about_the_losses_of_cpus(gpu: Gpu, network: str) -> None:
    _, history = trained(Single(), workload_for(network, "bfloat16"), STEPS, registry=gpu.registry(), gpus=True)
    expected = [loss for loss, _ in on_cpus(network, "bfloat16")[1]]
    np.testing.assert_allclose([loss for loss, _ in history], expected, rtol=0.03)


@pytest.mark.parametrize("loop", ["overlapped", "direct"])
def test_async_data_in_virtual_time_trains_as_on_cpus(gpu: Gpu, loop: str) -> None:
    strategy, workload = AsyncData(workers=3, servers=2, loop=loop), workload_for("dense", "float64")
    found = trained(strategy, workload, STEPS, registry=gpu.registry(), gpus=True)
    expect_near(found, trained(strategy, workload, STEPS), "float64")


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 2)])
def test_sandblaster_makes_the_same_iterations_as_on_cpus(gpu: Gpu, workers: int, servers: int) -> None:
    strategy = Sandblaster(workers=workers, servers=servers, portions_per_worker=2)
    workload = workload_for("dense", "float64", optimizer=Lbfgs(history=2, clip_norm=1.0, weight_decay=1e-3))
    run = partial(iterated, strategy, workload, steps=range(4))
    found, expected = run(registry=gpu.registry(), gpus=True), run()
    np.testing.assert_allclose(found.iterations, expected.iterations, rtol=1e-6)
    assert found.evaluations == expected.evaluations


@pytest.mark.parametrize("optimizer", [momentum(), Adam(lr=0.01)], ids=["momentum", "adam"])
def test_repeated_runs_are_equal_bit_for_bit(gpu: Gpu, optimizer: Optimizer) -> None:
    """Each reduction adds its terms in a fixed order, which does not depend on the scheduling of threads."""
    registry, workload = gpu.registry(), workload_for("batch_normalised", "float32", optimizer=optimizer)
    first, second = (trained(Single(), workload, STEPS, registry=registry, gpus=True) for _ in range(2))
    expect_same_bits(first[0], second[0])
    assert first[1] == second[1]


def test_a_run_on_cpus_continues_on_a_gpu(gpu: Gpu) -> None:
    registry, workload = gpu.registry(), workload_for("dropped_out", "float64")
    with begun(Single(), workload) as first:
        first.train(range(3))
        saved = first.weights()
    with begun(SyncData(workers=2), workload, saved, registry=registry, gpus=True) as second:
        second.train(range(3, STEPS))
        assert difference(second.weights(), on_cpus("dropped_out", "float64")[0]) <= TOLERANCES["float64"][0]


def test_evaluation_gives_the_same_scores_as_on_cpus(gpu: Gpu) -> None:
    workload = workload_for("hybrid", "float64")
    scored = []
    for registry, gpus in ((gpu.registry(), True), (load_kernels(), False)):
        with begun(SyncData(workers=2), workload, registry=registry, gpus=gpus) as trainer:
            scored.append(trainer.evaluate())
    for name, value in scored[1].items():
        np.testing.assert_allclose(scored[0][name], value, rtol=1e-9, err_msg=name)
