"""Steps on a GPU: replayed steps, waits of the host, memory, wrong labels, the benchmark, and an NCCL all-reduce."""

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import networks
from benchmarks.gpu.engine import Engine, engine_on
from benchmarks.gpu.ours import OursOnGpu
from benchmarks.problem import Problem
from runner.errors import RunnerError
from runner.kernels.gpu.platform import GpuPlatform
from runner.kernels.platform import Work
from runner.kernels.registry import Registry
from runner.models import LeNet
from runner.optimizers import Momentum
from runner.strategies import Single, Strategy, SyncData, Workload
from runner.tasks.classification import classifier
from tests.gpu.gpus import Counted, Gpu, on_gpu
from tests.kernels.gpu.fake_nccl import with_nccl
from tests.kernels.gpu.test_collective import bound, operand
from tests.strategies.networks import Examples, workload_of
from tests.strategies.training import Trainer, begun

STEPS = 6
TABLES = 1024
"""Maximum size in bytes of the tables of the launch that combines the updates of a network with four layers."""

SMALL_LENET = classifier(LeNet(filters=[3, 4], units=10), 3)


def workload() -> Workload:
    return workload_of(SMALL_LENET, Momentum(clip_norm=1.0), batch_size=6, example_shape=(1, 16, 16), dtype="float32")


def lenet_begun(strategy: Strategy, registry: Registry) -> AbstractContextManager[Trainer]:
    """Return a context with the trainer of a small LeNet on a GPU, with initialized variables."""
    return begun(strategy, workload(), registry=registry, gpus=True)


@pytest.mark.small
def test_a_replayed_step_equals_an_eager_step(gpu: Gpu) -> None:
    """The first step of a session runs eagerly, the second is captured, and later steps are replayed."""
    registry = gpu.registry()
    with lenet_begun(Single(), registry) as replaying:
        history = replaying.train(range(STEPS))
        replayed = replaying.weights()
    saved, eager = None, []
    for step in range(STEPS):
        with lenet_begun(Single(), registry) as fresh:
            if saved is not None:
                fresh.session.run("restore", feeds=saved)
            eager += fresh.train(range(step, step + 1))
            saved = fresh.weights()
    assert history == eager
    for name, value in saved.items() if saved else ():
        np.testing.assert_array_equal(replayed[name], value, err_msg=name)


@pytest.mark.small
def test_replayed_steps_capture_and_allocate_nothing(gpu: Gpu) -> None:
    runtime, registry = gpu.counted()
    with lenet_begun(Single(), registry) as trainer:
        trainer.train(range(2))
        before = dict(runtime.calls)
        trainer.train(range(2, STEPS))
        asked = {name: count - before.get(name, 0) for name, count in runtime.calls.items()}
    assert before["capture"] >= 1
    assert {name: asked.get(name, 0) for name in ("capture", "allocate", "stream", "function")} == {
        "capture": 0,
        "allocate": 0,
        "stream": 0,
        "function": 0,
    }


@pytest.mark.parametrize("strategy", [Single(), SyncData(workers=2)], ids=["single", "sync_data"])
def test_a_step_waits_once_for_each_device(gpu: Gpu, strategy: Any) -> None:
    """A single wait for a device is enough to fetch all values of a step."""
    runtime, registry = gpu.counted()
    with lenet_begun(strategy, registry) as trainer:
        trainer.train(range(3))
        before = runtime.calls["synchronize"]
        trainer.train(range(3, 3 + STEPS))
        assert runtime.calls["synchronize"] - before == STEPS * strategy.workers


def allocations(runtime: Counted, registry: Registry) -> tuple[int, int]:
    """Return the bytes that training steps allocate, and the bytes that their plan needs."""
    with lenet_begun(Single(), registry) as trainer:
        before = runtime.allocated
        trainer.train(range(STEPS))
        (plan,) = trainer.session.plans("train").values()
        fed = sum(feed.spec.nbytes for feed in plan.feeds)
        new = sum(slot.layout.nbytes for name, slot in plan.variables.items() if name not in trainer.program.variables)
        return runtime.allocated - before, plan.arena_bytes + 2 * fed + new


@pytest.mark.small
def test_the_allocated_memory_is_the_planned_memory(gpu: Gpu) -> None:
    """The plan counts the arena of a step, two buffers for each input, and the variables that are in no checkpoint.

    "init" has allocated the other variables. A launch of several updates also reads a table of a few words per update.
    """
    allocated, planned = allocations(*gpu.counted())
    assert planned <= allocated <= planned + TABLES


@pytest.mark.small
def test_a_wrong_label_raises_the_same_error_as_on_cpus(gpu: Gpu) -> None:
    """The GPU finds a label out of range during the step, and the error is raised after the step."""

    class Mislabelled(Examples):
        def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, Any]:
            batch = super().read(split, step, lo, hi)
            return {**batch, "y": batch["y"] + 100 * (step == 4)}

    source = Mislabelled(6, (1, 16, 16), dtype="float32")
    with begun(Single(), workload(), registry=gpu.registry(), gpus=True, source=source) as trainer:
        trainer.train(range(4))
        with pytest.raises(
            RunnerError, match=r"failed in step 4: IndexError: .* index 10[0-2] at \[0\] is outside 0\.\.2"
        ):
            trainer.train(range(4, 6))


BENCHMARK = networks.GPU_CASES["smoke"]


def losses(engine: Engine, problem: Problem) -> tuple[list[float], float]:
    """Return the losses of four steps and of a gradient computation after them, and the memory of a step in MiB."""
    with ExitStack() as stack:
        subject = OursOnGpu(engine, networks.workload_of(BENCHMARK, "float32"), problem, stack)
        subject.load()
        step, gradients = subject.phase("step"), subject.phase("gradients")
        return [step() for _ in range(4)] + [gradients()], subject.memory_mib()


@pytest.mark.small
def test_the_benchmark_computes_the_same_losses_on_a_gpu_as_on_cpus(gpu: Gpu, tmp_path: Path) -> None:
    problem = networks.prepare(BENCHMARK, tmp_path / "problem")
    found, memory = losses(Engine(on_gpu(1), gpu.registry()), problem)
    expected, _ = losses(engine_on("cpu", "float32"), problem)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert expected[0] > expected[-1]
    assert 0.0 < memory < 1.0


DTYPES = ("float32", "float64", "bfloat16", "int32", "int64")


@pytest.mark.small
def test_an_all_reduce_on_one_gpu_returns_its_input(gpu: Gpu) -> None:
    runtime: Any = gpu.opened(False)
    if gpu.emulated:
        with_nccl(runtime)
    library = runtime.library("nccl")
    if library is None:
        pytest.skip("NCCL is not installed; one GPU does not need it")
    platform = GpuPlatform(runtime, 0)
    library.join(library.unique_id(), 0, 1)
    try:
        arrays = [np.arange(1000).astype(np.dtype(dtype)) for dtype in DTYPES]
        placed = [(operand(runtime, array), operand(runtime, np.zeros_like(array))) for array in arrays]
        works = [Work(bound(runtime, 0, 1, part, total), (part.data,), (total.data,)) for part, total in placed]
        call = platform.join(works).call
        for _ in range(3):
            call()
        for array, (_, total) in zip(arrays, placed, strict=True):
            np.testing.assert_array_equal(platform.snapshot(total.data).view(array.dtype), array)
    finally:
        library.leave()
