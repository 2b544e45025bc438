"""Memory of GPUs that a run is planned to take, and the refusal of one that they cannot hold."""

from __future__ import annotations

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
"""Of each process on a GPU: what its driver and libraries are assumed to keep there."""


@dataclass(frozen=True)
class GpuMemory:
    """Planned bytes of one GPU.

    devices: the logical devices on it. processes: that these are in, and the master where it plans there. variables:
    parameters and slots of the optimizer. step: the largest arena of each device. moved: tensors that are fed, and
    that are sent.
    """

    gpu: int
    devices: tuple[str, ...] = ()
    processes: int = 1
    variables: int = 0
    step: int = 0
    moved: int = 0

    @property
    def total(self) -> int:
        """All of it, with :data:`CONTEXT_BYTES` of each process."""
        return self.variables + self.step + self.moved + self.processes * CONTEXT_BYTES


def planned_gpu_memory(experiment: Experiment, planned: ProgramPlans) -> list[GpuMemory]:
    """What a run is planned to take of every GPU that it uses, by the GPU's number."""
    found: dict[int, GpuMemory] = {}
    workers = experiment.program.one_process is None
    for device in experiment.cluster.devices:
        if device.gpu is None:
            continue
        plans = plans_of_device(device.name, experiment.program, planned)
        variables = {name: slot.layout.nbytes for plan in plans for name, slot in plan.variables.items()}
        # What a step reads waits in two places beside its own.
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
        # The master plans for all on the GPU of the first of them.
        home = next(iter(found))
        found[home] = replace(found[home], processes=found[home].processes + 1)
    return [found[gpu] for gpu in sorted(found)]


def require_gpu_memory(experiment: Experiment, gpus: Sequence[GpuFacts]) -> None:
    """Raise ResourceError for a run that its GPUs cannot hold beside what is on them.

    gpus: those of this machine. Only where it may come near is anything planned, for plans take time.
    """
    used = {device.gpu for device in experiment.cluster.devices}
    sizes = [gpu.available_bytes for gpu in gpus if gpu.number in used]
    contexts = len(experiment.cluster.devices) * CONTEXT_BYTES
    if sizes and most_bytes(experiment) + contexts > min(sizes) // 2:
        kernels = kernels_for(experiment.cluster.devices)
        plans = ProgramPlans(experiment.program, experiment.cluster, kernels)
        require_gpu_fit(planned_gpu_memory(experiment, plans), gpus)


def require_gpu_fit(memory: Sequence[GpuMemory], gpus: Sequence[GpuFacts]) -> None:
    """Raise ResourceError, with the numbers, for the first GPU that would have to hold more than it has free."""
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
                "lists who else has memory there"
            )


def gpu_fit_text(memory: GpuMemory, gpu: GpuFacts) -> str:
    """One line: what is needed of a GPU beside what it has."""
    verdict = "" if memory.total <= gpu.available_bytes else ", it cannot fit"
    free = "" if gpu.free_bytes is None else f", {gib(gpu.free_bytes)} free"
    return f"memory needed {gib(memory.total)} of GPU {gpu.number} ({gpu}{free}){verdict}"


def room_text(gpu: GpuFacts) -> str:
    """What a GPU has, and what is free of it where that is known."""
    return gib(gpu.memory_bytes) if gpu.free_bytes is None else f"{gib(gpu.free_bytes)} free of {gib(gpu.memory_bytes)}"
