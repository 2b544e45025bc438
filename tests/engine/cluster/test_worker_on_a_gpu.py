"""Workers that compute on emulated GPUs and send tensors through host memory, on a virtual network."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.engine.cluster import worker
from runner.engine.cluster.transport.messages import Failed, Run
from runner.engine.compile.program import InputSource
from runner.engine.graph.device import DEFAULT_GPU_OPTIONS, GpuOptions, Gpus
from runner.errors import ResourceError
from runner.kernels.registry import Registry
from runner.strategies.base import Strategy
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.engine.cluster.test_gpus_of_a_session import Spoiled
from tests.engine.cluster.virtual_cluster import VirtualCluster, virtual_cluster
from tests.gpu.gpus import registry_of
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.strategies.networks import BATCH, Examples, workload_of
from tests.strategies.training import difference, trained

STEPS = 3
STRATEGIES: Mapping[str, tuple[Strategy, Gpus]] = {
    "each_on_its_own_gpu": (SyncData(workers=2), Gpus((0, 1))),
    "both_on_one": (SyncData(workers=2, combine="ring_all_reduce"), Gpus((1, 1))),
    "with_a_server_on_the_cpu": (SyncData(workers=2, combine="parameter_server", servers=1), Gpus((0, 1))),
}


@pytest.fixture
def opened(compiled_sources: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[GpuOptions, EmulatedRuntime]]:
    """Let each worker load separate emulated GPUs; return a list to which each worker adds its options and its GPUs."""
    found: list[tuple[GpuOptions, EmulatedRuntime]] = []

    def load(use: GpuOptions, home: int) -> Registry:
        found.append((use, EmulatedRuntime(compiled_sources, gpus=2)))
        return registry_of(found[-1][1])

    monkeypatch.setattr(worker, "load_gpu_kernels", load)
    return found


@contextmanager
def begun(strategy: Strategy, gpus: Gpus, folders: tuple[Path, Path], source: InputSource) -> Iterator[VirtualCluster]:
    """Yield initialized workers that train the dense network. folders: one for arenas, one for compiled sources."""
    program = strategy.build(workload_of("dense"))
    arenas, compiled = folders
    planned_with = registry_of(EmulatedRuntime(compiled, gpus=2))
    with virtual_cluster(program, arenas, planned_with, lambda description: source, gpus=gpus) as cluster:
        cluster.set_up()
        cluster.run("init")
        yield cluster


def feeds(step: int) -> dict[str, NDArray[Any]]:
    """Return the feeds that :class:`tests.strategies.training.Trainer` uses in a step."""
    return {"step": np.int64(step), "learning_rate": np.float64(0.1 / (1 + step))}  # type: ignore[dict-item]


@pytest.mark.parametrize("name", STRATEGIES)
def test_workers_on_gpus_compute_the_results_of_single(
    name: str, opened: list[tuple[GpuOptions, EmulatedRuntime]], tmp_path: Path, compiled_sources: Path
) -> None:
    expected, history = trained(Single(), workload_of("dense"), STEPS)
    strategy, gpus = STRATEGIES[name]
    with begun(strategy, gpus, (tmp_path, compiled_sources), Examples(BATCH)) as cluster:
        losses = [float(cluster.run("train", step, feeds(step))["loss"]) for step in range(STEPS)]
        weights = cluster.run("save")
    assert difference({each: weights[each] for each in expected}, expected) < 1e-12
    np.testing.assert_allclose(losses, [loss for loss, _ in history], rtol=1e-12)
    assert [use for use, _ in opened] == [DEFAULT_GPU_OPTIONS, DEFAULT_GPU_OPTIONS]
    computed_on = [{gpu for gpu, _, _ in runtime._functions} for _, runtime in opened]
    assert sorted(map(sorted, computed_on)) == [[gpu] for gpu in gpus.of_workers]


@pytest.mark.usefixtures("opened")
def test_gpu_error_is_reported_to_the_master(tmp_path: Path, compiled_sources: Path) -> None:
    mislabelled = Spoiled(Examples(BATCH), lambda field, step, lo: 100 * ((field, step) == ("y", 1)))
    with begun(SyncData(workers=2), Gpus((0, 1)), (tmp_path, compiled_sources), mislabelled) as cluster:
        plan = cluster.load("train")
        cluster.run("train", 0, feeds(0))
        cluster.feed("train", feeds(1))
        cluster.send(Run("train", 1), plan.plans)
        failed = cluster.receive().message
        assert isinstance(failed, Failed)
        assert failed.error == "RunnerError"
        assert "device:gpu:0 failed in step 1: IndexError" in failed.text


def test_worker_without_a_gpu_reports_it(tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a GPU was requested, but CUDA finds none"

    def load(use: GpuOptions, home: int) -> Registry:
        raise ResourceError(text)

    monkeypatch.setattr(worker, "load_gpu_kernels", load)
    program = SyncData(workers=2).build(workload_of("dense"))
    gpus = Gpus((0, 0))
    with virtual_cluster(program, tmp_path, registry, lambda description: Examples(BATCH), gpus=gpus) as cluster:
        cluster.set_up()
        failures = cluster.answers(Failed)
        cluster.wait_for_ends()
    assert failures == dict.fromkeys(cluster.workers, Failed("ResourceError", text))
    assert set(cluster.ended.values()) == {ResourceError.exit_code}
