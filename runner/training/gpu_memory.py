"""The planned memory of each GPU of a run, and the refusal of a run that its GPUs cannot hold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.engine.cluster.assignment import peer_of
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.run.kernel_table import kernels_for
from runner.errors import ResourceError
from runner.kernels.gpu.driver import GpuFacts
from runner.training.experiment import Experiment
from runner.training.memory import gib, most_bytes, plans_of_device

CONTEXT_BYTES = 500 << 20
"""Assumed GPU memory of driver and libraries for each process."""


@dataclass(frozen=True)
class GpuMemory:
    """Planned bytes of one GPU.

    devices: the logical devices on it. processes: the number of processes that use it, with the master if it plans
    there. variables: parameters and slots of the optimizer. step: the largest arena of each device. moved: tensors that
    are fed or sent.
    """

    gpu: int
    devices: tuple[str, ...] = ()
    processes: int = 1
    variables: int = 0
    step: int = 0
    moved: int = 0

    @property
    def total(self) -> int:
        """The sum, with :data:`CONTEXT_BYTES` for each process."""
        return self.variables + self.step + self.moved + self.processes * CONTEXT_BYTES


def planned_gpu_memory(experiment: Experiment, planned: ProgramPlans) -> list[GpuMemory]:
    """Return the planned memory of every GPU that a run uses, by GPU number."""
    found: dict[int, GpuMemory] = {}
    workers = experiment.program.one_process is None
    for device in experiment.cluster.devices:
        if device.gpu is None:
            continue
        plans = plans_of_device(device.name, experiment.program, planned)
        variables = {name: slot.layout.nbytes for plan in plans for name, slot in plan.variables.items()}
        # Each fed tensor has two more copies, which wait for their step.
        fed = sum(2 * feed.spec.nbytes for plan in plans for feed in plan.feeds)
        received = sum(sum(plan.received_bytes.values()) for plan in plans)
        before = found.get(device.gpu, GpuMemory(device.gpu))
        devices = (*before.devices, device.name)
        found[device.gpu] = replace(
            before,
            devices=devices,
            processes=len(set(map(peer_of, devices))) if workers else 1,
            variables=before.variables + sum(variables.values()),
            step=before.step + max((plan.arena_bytes for plan in plans), default=0),
            moved=before.moved + fed + received + sum(plan.sent_bytes for plan in plans),
        )
    if workers and found:
        # The master plans for all devices on the GPU of the first one.
        home = next(iter(found))
        found[home] = replace(found[home], processes=found[home].processes + 1)
    return [found[gpu] for gpu in sorted(found)]


def require_gpu_memory(experiment: Experiment, gpus: Sequence[GpuFacts]) -> None:
    """Raise ResourceError for a run that exceeds the free memory of its GPUs. gpus: of this machine.

    Memory is planned only if an upper bound exceeds half of a GPU's memory, because planning takes time.
    """
    used = {device.gpu for device in experiment.cluster.devices}
    sizes = [gpu.available_bytes for gpu in gpus if gpu.number in used]
    contexts = len(experiment.cluster.devices) * CONTEXT_BYTES
    if sizes and most_bytes(experiment) + contexts > min(sizes) // 2:
        kernels = kernels_for(experiment.cluster.devices)
        plans = ProgramPlans(experiment.program, experiment.cluster, kernels)
        require_gpu_fit(planned_gpu_memory(experiment, plans), gpus)


def require_gpu_fit(memory: Sequence[GpuMemory], gpus: Sequence[GpuFacts]) -> None:
    """Raise ResourceError, with the numbers, for the first GPU whose free memory is exceeded."""
    there = {gpu.number: gpu for gpu in gpus}
    for each in memory:
        gpu = there[each.gpu]
        if each.total > gpu.available_bytes:
            raise ResourceError(
                f"the run needs {gib(each.total)} of GPU {each.gpu} ({gpu.name}), which has "
                f"{room_text(gpu)}: {len(each.devices)} device(s) in {each.processes} process(es), "
                f"{gib(each.step)} in a step, {gib(each.variables)} of variables, {gib(each.moved)} fed and sent. Use "
                "a smaller train.batch_size or train.eval_batch_size, more train.microbatches (parallelism=single), "
                "fewer workers on the GPU (cluster.gpus), precision=bfloat16, or cluster.device=cpu; `nvidia-smi` "
                "lists the processes on the GPU"
            )


def gpu_fit_text(memory: GpuMemory, gpu: GpuFacts) -> str:
    """Return one line with the needed and the free memory of a GPU."""
    verdict = "" if memory.total <= gpu.available_bytes else ", it cannot fit"
    free = "" if gpu.free_bytes is None else f", {gib(gpu.free_bytes)} free"
    return f"memory needed {gib(memory.total)} of GPU {gpu.number} ({gpu}{free}){verdict}"


def room_text(gpu: GpuFacts) -> str:
    """Return the memory of a GPU and, if known, the free memory, as text."""
    return gib(gpu.memory_bytes) if gpu.free_bytes is None else f"{gib(gpu.free_bytes)} free of {gib(gpu.memory_bytes)}"
