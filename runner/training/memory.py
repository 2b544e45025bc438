"""The planned memory of each process and GPU of a run; runs that do not fit this machine are refused."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.config.schema import LOCAL
from runner.engine.cluster.assignment import peer_of
from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program import Program
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import TensorSpec, state_dtype
from runner.errors import ResourceError
from runner.kernels.gpu.driver import GpuFacts
from runner.system.machine import available_memory, process_room, usable_memory
from runner.training.experiment import Experiment

log = logging.getLogger(__name__)

CONTEXT_BYTES = 500 << 20  # assumed GPU memory of the driver and the libraries in each process
PROGRAM_BYTES = 150 << 20  # bytes of the interpreter and libraries of a process, measured for workers of tiny networks
CHECKPOINT_COPIES = 5
"""Copies of all variables while a checkpoint is written: two to write the file (the fetched arrays, the bytes of the
file) and three to read it back (the bytes of the file, the bytes of each tensor, writable arrays)."""

BOUNDARY_COPIES = 1  # copies of all variables in the master's memory for a recovery from a lost worker
INDEX_BYTES = 64
"""Bytes for each example of a streamed dataset: its position in the files, its label, and its ranks in two epochs."""

_FETCH_COPIES = 2  # copies of tensors that a worker returns to the master: one in the worker, and one in shared memory


@dataclass(frozen=True)
class ProcessMemory:
    """Planned bytes of one process.

    variables: parameters and optimizer slots. step: the largest arena (memory for intermediate values) of each device,
    usually the arena of training steps. sent: tensors that are sent to other devices or fetched by the master. data:
    the dataset and the batch that is read ahead. checkpoint: copies of all variables while a checkpoint is written.
    here: whether the process is known to be on this machine; a launcher may start it on another host.
    """

    process: str
    variables: int = 0
    step: int = 0
    sent: int = 0
    data: int = 0
    checkpoint: int = 0
    here: bool = True

    @property
    def total(self) -> int:
        """The sum of all bytes and :data:`PROGRAM_BYTES`."""
        return self.variables + self.step + self.sent + self.data + self.checkpoint + PROGRAM_BYTES


def planned_memory(experiment: Experiment, planned: ProgramPlans) -> list[ProcessMemory]:
    """Return the planned memory of every process of a run; the master, which computes nothing, comes first.

    Spare processes, which hold only their program until they take the place of a lost process, come last. Variables and
    arenas of devices with a GPU are not counted, because they are in GPU memory.
    """
    program = experiment.program
    one_process = program.one_process is not None
    found = {} if one_process else {"master": ProcessMemory("master")}
    launcher, data = experiment.config.cluster.launcher, dataset_bytes(experiment)
    here = launcher.kind == LOCAL or launcher.ray == "local"
    for device in experiment.cluster.devices:
        plans = _plans_of(device.name, program, planned)
        process = "main" if one_process else peer_of(device.name)
        before = found.get(process) or ProcessMemory(process, data=data, here=here)
        fetched = sum(plan.slots[slot].spec.nbytes for plan in plans for slot in plan.fetches.values())
        copied = 0 if one_process else _FETCH_COPIES * fetched
        on_host = device.gpu is None
        found[process] = replace(
            before,
            variables=before.variables + on_host * _bytes_of_variables(plans),
            step=before.step + on_host * _largest_arena(plans),
            sent=before.sent + sum(plan.sent_bytes for plan in plans) + copied,
            data=before.data + sum(feed.spec.nbytes for plan in plans for feed in plan.feeds),
        )
    saver, copies = ("main", CHECKPOINT_COPIES) if one_process else ("master", CHECKPOINT_COPIES + BOUNDARY_COPIES)
    copies += bool(experiment.spares)  # with spares, the inputs of client "restore" stay in shared memory
    found[saver] = replace(found[saver], checkpoint=copies * _variable_bytes(program))
    spares = [ProcessMemory(f"spare-{number}", data=data, here=here) for number in range(experiment.spares)]
    return [*found.values(), *spares]


def dataset_bytes(experiment: Experiment) -> int:
    """Return the bytes of train and test split: ``input_bytes`` per element of x and 8 per element of other fields.

    For a streamed dataset, return the bytes of its index and of the batches that are prepared ahead.
    """
    facts, train, data = experiment.facts, experiment.config.train, experiment.config.data
    sizes: dict[str, int] = {"x": data.input_bytes}
    example = sum(math.prod(field.shape) * sizes.get(name, 8) for name, field in facts.fields.items())
    examples = facts.train_examples + facts.test_examples
    if data.streamed:
        ahead: int = (data.prefetch + 1) * max(train.batch_size, train.eval_batch_size)
        inputs = TensorSpec(facts.shape, facts.fields["x"].dtype or state_dtype(experiment.config.precision))
        return examples * INDEX_BYTES + ahead * inputs.nbytes
    return examples * example


def require_variables_fit(program: Program) -> None:
    """Raise ResourceError if this machine cannot hold one copy of all variables.

    This check makes no plan, because planning calls the kernel libraries, which fail for very large tensors.
    """
    if _variable_bytes(program) > usable_memory():
        raise ResourceError(
            f"the variables of the model and the optimizer take {gib(_variable_bytes(program))}, and this machine has "
            f"{gib(usable_memory())} of memory; use a smaller model, or images with fewer pixels"
        )


def require_memory(experiment: Experiment) -> None:
    """Raise ResourceError for a run that exceeds the memory of this machine; warn if it exceeds the free memory.

    Memory is planned only if an upper bound exceeds half of the machine's memory, because planning takes time.
    """
    room = process_room()
    if most_bytes(experiment) > (usable_memory() if room is None else min(usable_memory(), room)) // 2:
        memory = planned_memory(experiment, experiment.plans())
        require_fit(memory, usable_memory(), process_room())
        if _needed(memory) > available_memory():
            log.warning("%s", fit_text(memory, usable_memory(), available_memory()))


def require_fit(memory: Sequence[ProcessMemory], usable: int, room: int | None = None) -> None:
    """Raise ResourceError, with the numbers, if the processes on this machine need more memory than is available.

    usable: bytes of memory of this machine. room: bytes by which resource limits let a process grow; None: no limits.
    """
    memory = [each for each in memory if each.here]
    largest = max(memory, key=lambda each: each.total)
    parts = (
        f"the largest process, {largest.process}: {gib(largest.step)} in a step, {gib(largest.variables)} of "
        f"variables, {gib(largest.data)} of data, {gib(largest.checkpoint)} to write a checkpoint. Use a smaller "
        "train.batch_size or train.eval_batch_size, more train.microbatches (parallelism=single), train.recompute, "
        "fewer workers, a smaller model, data.train_limit, or data.stream=true if the dataset has this key"
    )
    if (needed := _needed(memory)) > usable:
        raise ResourceError(
            f"the run needs {gib(needed)} of memory in {len(memory)} process(es), and this machine has "
            f"{gib(usable)}; {parts}"
        )
    if room is not None and largest.total - PROGRAM_BYTES > room:
        raise ResourceError(
            f"a process of the run needs {gib(largest.total - PROGRAM_BYTES)} of memory besides its program, and its "
            f"resource limits (ulimit -v, ulimit -d) leave {gib(room)}; {parts}; or raise the limits"
        )


def fit_text(memory: Sequence[ProcessMemory], usable: int, available: int) -> str:
    """Return one line with the needed, usable and available memory. usable, available: bytes."""
    needed = _needed(memory)
    verdict = "" if needed <= available else ", too little" if needed <= usable else ": the run does not fit"
    return f"memory needed {gib(needed)}; this machine has {gib(usable)}, {gib(available)} available now{verdict}"


def _needed(memory: Sequence[ProcessMemory]) -> int:
    """Return the bytes that the processes on this machine need."""
    return sum(each.total for each in memory if each.here)


def _plans_of(device: str, program: Program, planned: ProgramPlans) -> list[DevicePlan]:
    """Return the plans of a device for all clients except "restore"."""
    every = (planned.plans(client.signature) for client in program.clients.values() if client.name != "restore")
    return [plans[device] for plans in every if device in plans]


def _bytes_of_variables(plans: Sequence[DevicePlan]) -> int:
    return sum({name: slot.layout.nbytes for plan in plans for name, slot in plan.variables.items()}.values())


def _largest_arena(plans: Sequence[DevicePlan]) -> int:
    return max((plan.arena_bytes for plan in plans), default=0)


def most_bytes(experiment: Experiment) -> int:
    """Return an upper bound, in bytes, on the memory of a run, as if every value of the graph had its own buffer."""
    program = experiment.program
    values = sum(spec.nbytes for node in program.graph for spec in node.outputs)
    processes = 1 if program.one_process is not None else program.workers + program.servers + 1 + experiment.spares
    saved = (CHECKPOINT_COPIES + BOUNDARY_COPIES + _FETCH_COPIES) * _variable_bytes(program)
    return values + saved + processes * (dataset_bytes(experiment) + PROGRAM_BYTES)


def _variable_bytes(program: Program) -> int:
    return sum(spec.nbytes for spec in program.variables.values())


def gib(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB"


@dataclass(frozen=True)
class GpuMemory:
    """Planned bytes of one GPU.

    devices: the logical devices on the GPU. processes: the number of processes that use the GPU, including the master
    if it uses this GPU for planning. variables: parameters and optimizer slots. step: the largest arena of each
    device, added up. moved: tensors that are fed, sent or received.
    """

    gpu: int
    devices: tuple[str, ...] = ()
    processes: int = 1
    variables: int = 0
    step: int = 0
    moved: int = 0

    @property
    def total(self) -> int:
        """The sum of variables, step, moved and :data:`CONTEXT_BYTES` for each process."""
        return self.variables + self.step + self.moved + self.processes * CONTEXT_BYTES


def planned_gpu_memory(experiment: Experiment, planned: ProgramPlans) -> list[GpuMemory]:
    """Return the planned memory of every GPU that a run uses, in the order of GPU numbers."""
    found: dict[int, GpuMemory] = {}
    workers = experiment.program.one_process is None
    for device in experiment.cluster.devices:
        if device.gpu is None:
            continue
        plans = _plans_of(device.name, experiment.program, planned)
        # Each fed tensor has two buffers, because values are copied to the GPU before the step that uses them.
        fed = sum(2 * feed.spec.nbytes for plan in plans for feed in plan.feeds)
        received = sum(sum(plan.received_bytes.values()) for plan in plans)
        before = found.get(device.gpu, GpuMemory(device.gpu))
        devices = (*before.devices, device.name)
        found[device.gpu] = replace(
            before,
            devices=devices,
            processes=len(set(map(peer_of, devices))) if workers else 1,
            variables=before.variables + _bytes_of_variables(plans),
            step=before.step + _largest_arena(plans),
            moved=before.moved + fed + received + sum(plan.sent_bytes for plan in plans),
        )
    if workers and found:
        # The master uses the GPU of the first device to make the plans of all devices.
        home = next(iter(found))
        found[home] = replace(found[home], processes=found[home].processes + 1)
    return [found[gpu] for gpu in sorted(found)]


def require_gpu_memory(experiment: Experiment, gpus: Sequence[GpuFacts]) -> None:
    """Raise ResourceError for a run that exceeds the free memory of its GPUs. gpus: the GPUs of this machine.

    Memory is planned only if an upper bound exceeds half of a GPU's memory, because planning takes time.
    """
    used = {device.gpu for device in experiment.cluster.devices}
    sizes = [gpu.available_bytes for gpu in gpus if gpu.number in used]
    contexts = len(experiment.cluster.devices) * CONTEXT_BYTES
    if sizes and most_bytes(experiment) + contexts > min(sizes) // 2:
        require_gpu_fit(planned_gpu_memory(experiment, experiment.plans()), gpus)


def require_gpu_fit(memory: Sequence[GpuMemory], gpus: Sequence[GpuFacts]) -> None:
    """Raise ResourceError, with the numbers, for the first GPU whose free memory is exceeded."""
    by_number = {gpu.number: gpu for gpu in gpus}
    for each in memory:
        gpu = by_number[each.gpu]
        if each.total > gpu.available_bytes:
            room = gib(gpu.memory_bytes)
            room = room if gpu.free_bytes is None else f"{gib(gpu.free_bytes)} free of {room}"
            raise ResourceError(
                f"the run needs {gib(each.total)} of GPU {each.gpu} ({gpu.name}), which has "
                f"{room}: {len(each.devices)} device(s) in {each.processes} process(es), "
                f"{gib(each.step)} in a step, {gib(each.variables)} of variables, {gib(each.moved)} fed and sent. Use "
                "a smaller train.batch_size or train.eval_batch_size, more train.microbatches (parallelism=single), "
                "train.recompute, fewer workers on the GPU (cluster.gpus), precision=bfloat16, or cluster.device=cpu; "
                "`nvidia-smi` lists the processes on the GPU"
            )


def gpu_fit_text(memory: GpuMemory, gpu: GpuFacts) -> str:
    """Return one line with the needed and the free memory of a GPU."""
    verdict = "" if memory.total <= gpu.available_bytes else ": the run does not fit"
    free = "" if gpu.free_bytes is None else f", {gib(gpu.free_bytes)} free"
    return f"memory needed {gib(memory.total)} of GPU {gpu.number} ({gpu}{free}){verdict}"
