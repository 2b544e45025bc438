"""Planned memory of GPUs, and the refusal of runs."""

import pytest

from runner.commands.explanation.devices import plans_of
from runner.errors import ResourceError
from runner.training import memory as gpu_memory
from runner.training.memory import (
    CONTEXT_BYTES,
    GpuMemory,
    gpu_fit_text,
    planned_gpu_memory,
    planned_memory,
    require_gpu_fit,
    require_gpu_memory,
)
from tests.gpus import GIB, NO_DRIVER, gpu, gpu_kernels, machine
from tests.training.test_devices import STRATEGIES, placed

__all__ = ["gpu_kernels"]


@pytest.mark.usefixtures("gpu_kernels")
def test_memory_of_devices_on_one_gpu_adds_up_and_is_not_host_memory() -> None:
    experiment = placed(machine(gpu(0), gpu(1)), *STRATEGIES["sync_data"], "cluster.gpus=[0,0,1]")
    plans = plans_of(experiment)
    first, second = planned_gpu_memory(experiment, plans)
    assert (first.gpu, second.gpu) == (0, 1)
    assert len(first.devices) == 2
    assert first.variables == 2 * second.variables > 0
    assert 1.5 * second.step < first.step
    assert first.total == first.variables + first.step + first.moved + CONTEXT_BYTES
    (host,) = planned_memory(experiment, plans)
    assert (host.variables, host.step) == (0, 0)
    assert host.checkpoint > 0


@pytest.mark.usefixtures("gpu_kernels")
def test_every_process_has_a_context_on_its_gpu() -> None:
    experiment = placed(machine(gpu()), *STRATEGIES["servers"], "cluster.one_process=false")
    (found,) = planned_gpu_memory(experiment, plans_of(experiment))
    assert found.processes == 3, "two workers, and the master, which plans"
    memory = {each.process: each for each in planned_memory(experiment, plans_of(experiment))}
    assert memory["worker-0"].variables == 0
    assert memory["ps-0"].variables > 0


def test_without_gpus_nothing_is_planned() -> None:
    experiment = placed(NO_DRIVER, *STRATEGIES["sync_data"])
    assert planned_gpu_memory(experiment, plans_of(experiment)) == []


def test_a_run_that_exceeds_a_gpu_is_refused_with_numbers() -> None:
    devices = ("/job:worker/task:0/device:gpu:0", "/job:worker/task:1/device:gpu:0")
    memory = GpuMemory(1, devices, variables=GIB, step=4 * GIB, moved=GIB)
    needed = 6 * GIB + CONTEXT_BYTES
    gpus = (gpu(0, memory_bytes=1), gpu(1, memory_bytes=needed))
    require_gpu_fit([memory], gpus)
    assert gpu_fit_text(memory, gpus[1]) == (
        "memory needed 6.49 GiB of GPU 1 (Big GPU, compute capability 9.0, 6.5 GiB)"
    )
    small = gpu(1, memory_bytes=needed - 1)
    assert gpu_fit_text(memory, small).endswith(", it cannot fit")
    with pytest.raises(ResourceError) as refusal:
        require_gpu_fit([memory], (gpu(0), small))
    assert str(refusal.value).startswith(
        "the run needs 6.49 GiB of GPU 1 (Big GPU), which has 6.49 GiB: 2 device(s) in 1 process(es), 4.00 GiB in a "
        "step, 1.00 GiB of variables, 1.00 GiB fed and sent. Use a smaller train.batch_size"
    )


def test_memory_used_by_other_processes_is_not_available() -> None:
    memory = GpuMemory(0, ("/job:worker/task:0/device:gpu:0",), variables=GIB)
    needed = GIB + CONTEXT_BYTES
    enough, little = gpu(free_bytes=needed), gpu(free_bytes=needed - 1)
    require_gpu_fit([memory], [enough])
    assert gpu_fit_text(memory, enough).endswith("80.0 GiB, 1.49 GiB free)")
    assert gpu_fit_text(memory, little).endswith("80.0 GiB, 1.49 GiB free), it cannot fit")
    with pytest.raises(
        ResourceError, match=r"needs 1\.49 GiB of GPU 0 \(Big GPU\), which has 1\.49 GiB free of 80\.00"
    ):
        require_gpu_fit([memory], [little])


@pytest.mark.usefixtures("gpu_kernels")
def test_a_run_that_a_gpu_cannot_hold_is_refused_and_a_small_one_is_not_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = machine(gpu(0, memory_bytes=CONTEXT_BYTES))
    with pytest.raises(ResourceError, match=r"the run needs 0\.49 GiB of GPU 0 \(Big GPU\), which has 0\.49 GiB"):
        require_gpu_memory(placed(here, "parallelism=single"), here.gpus)
    taken = machine(gpu(0, free_bytes=CONTEXT_BYTES))
    with pytest.raises(ResourceError, match=r"which has 0\.49 GiB free of 80\.00 GiB"):
        require_gpu_memory(placed(taken, "parallelism=single"), taken.gpus)
    monkeypatch.setattr(gpu_memory, "planned_gpu_memory", lambda *_: pytest.fail("it takes time"))
    require_gpu_memory(placed(machine(gpu()), "parallelism=single"), machine(gpu()).gpus)
    require_gpu_memory(placed(NO_DRIVER, "parallelism=single"), here.gpus)
