"""The planned memory of each process of a run, and the refusal of a run that this machine cannot hold."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.engine.cluster.assignment import peer_of
from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program import Program
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.run.kernel_table import kernels_for
from runner.errors import ResourceError
from runner.system.machine import available_memory, process_room, usable_memory
from runner.training.experiment import Experiment

log = logging.getLogger(__name__)

PROGRAM_BYTES = 150 << 20
"""Interpreter and libraries of a process, as measured for workers of tiny networks."""

CHECKPOINT_COPIES = 5
"""Copies of all variables in the process that writes a checkpoint: fetched, packed, and read back to be verified."""

_FETCH_COPIES = 2
"""Copies of tensors that a worker returns to the master: its own, and one in shared memory."""

_LABEL_BYTES = 8
_RESTORE = "restore"
_GIB = 2**30


@dataclass(frozen=True)
class ProcessMemory:
    """Planned bytes of one process.

    variables: parameters and slots of the optimizer. step: the largest arena, usually that of a training step. sent:
    tensors between devices, and tensors that the master fetches for a checkpoint. data: the dataset, and the batch that
    is read ahead. checkpoint: copies of all variables while a checkpoint is written.
    """

    process: str
    variables: int = 0
    step: int = 0
    sent: int = 0
    data: int = 0
    checkpoint: int = 0

    @property
    def total(self) -> int:
        """The sum, with :data:`PROGRAM_BYTES`."""
        return self.variables + self.step + self.sent + self.data + self.checkpoint + PROGRAM_BYTES


def planned_memory(experiment: Experiment, planned: ProgramPlans) -> list[ProcessMemory]:
    """Return the planned memory of every process on this machine; the master, which computes nothing, comes first.

    Variables and steps of devices with a GPU are not counted, because they are on the GPU.
    """
    program = experiment.program
    own_process = program.one_process is not None
    found = {} if own_process else {"master": ProcessMemory("master")}
    for device in experiment.cluster.devices:
        plans = plans_of_device(device.name, program, planned)
        process = "main" if own_process else peer_of(device.name)
        before = found.get(process) or ProcessMemory(process, data=dataset_bytes(experiment))
        after = _with_device(before, plans, 0 if own_process else _FETCH_COPIES)
        elsewhere = device.gpu is not None
        found[process] = replace(after, variables=before.variables, step=before.step) if elsewhere else after
    saver = "main" if own_process else "master"
    found[saver] = replace(found[saver], checkpoint=CHECKPOINT_COPIES * _variable_bytes(program))
    return list(found.values())


def dataset_bytes(experiment: Experiment) -> int:
    """Return the bytes of both splits: C * H * W pixels and 8 bytes of label for each example."""
    facts = experiment.facts
    return (facts.train_examples + facts.test_examples) * (math.prod(facts.shape) + _LABEL_BYTES)


def require_variables_fit(program: Program) -> None:
    """Raise ResourceError if this machine cannot hold one copy of all variables.

    This needs no plan, because planning asks the kernel libraries, which fail for very large tensors.
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
        kernels = kernels_for(experiment.cluster.devices)
        memory = planned_memory(experiment, ProgramPlans(experiment.program, experiment.cluster, kernels))
        require_fit(memory, usable_memory(), process_room())
        if _total(memory) > available_memory():
            log.warning("%s", fit_text(memory, usable_memory(), available_memory()))


def require_fit(memory: Sequence[ProcessMemory], usable: int, room: int | None = None) -> None:
    """Raise ResourceError, with the numbers, if the processes need more memory than there is.

    usable: bytes of this machine. room: bytes by which resource limits let each process grow; None for no limits.
    """
    largest = max(memory, key=lambda each: each.total)
    parts = (
        f"the largest, {largest.process}: {gib(largest.step)} in a step, {gib(largest.variables)} of variables, "
        f"{gib(largest.data)} of data, {gib(largest.checkpoint)} to write a checkpoint. Use a smaller train.batch_size "
        "or train.eval_batch_size, more train.microbatches (parallelism=single), fewer workers, a smaller model, or "
        "data.train_limit"
    )
    if _total(memory) > usable:
        raise ResourceError(
            f"the run needs {gib(_total(memory))} of memory in {len(memory)} process(es), and this machine has "
            f"{gib(usable)}; {parts}"
        )
    if room is not None and largest.total - PROGRAM_BYTES > room:
        raise ResourceError(
            f"a process of the run needs {gib(largest.total - PROGRAM_BYTES)} of memory besides its program, and its "
            f"resource limits (ulimit -v, ulimit -d) leave {gib(room)}; {parts}; or raise the limits"
        )


def fit_text(memory: Sequence[ProcessMemory], usable: int, available: int) -> str:
    """Return one line with the needed, the usable and the available memory. usable, available: bytes."""
    needed = _total(memory)
    verdict = "" if needed <= available else ", less than it needs" if needed <= usable else ", it cannot fit"
    return f"memory needed {gib(needed)}; this machine has {gib(usable)}, {gib(available)} available now{verdict}"


def plans_of_device(device: str, program: Program, planned: ProgramPlans) -> list[DevicePlan]:
    """Return the plans of a device for all clients but the one that restores a checkpoint."""
    every = (planned.plans(client.signature) for client in program.clients.values() if client.name != _RESTORE)
    return [plans[device] for plans in every if device in plans]


def _with_device(memory: ProcessMemory, plans: Sequence[DevicePlan], fetch_copies: int) -> ProcessMemory:
    """Add a device to a process. fetch_copies: copies of fetched tensors."""
    fetched = sum(plan.slots[slot].spec.nbytes for plan in plans for slot in plan.fetches.values())
    variables = {name: slot.layout.nbytes for plan in plans for name, slot in plan.variables.items()}
    return replace(
        memory,
        variables=memory.variables + sum(variables.values()),
        step=memory.step + max((plan.arena_bytes for plan in plans), default=0),
        sent=memory.sent + sum(plan.sent_bytes for plan in plans) + fetch_copies * fetched,
        data=memory.data + sum(feed.spec.nbytes for plan in plans for feed in plan.feeds),
    )


def most_bytes(experiment: Experiment) -> int:
    """Return an upper bound for every plan: every value of the graph in a separate buffer."""
    program = experiment.program
    values = sum(spec.nbytes for node in program.graph for spec in node.outputs)
    processes = 1 if program.one_process is not None else program.workers + program.servers + 1
    saved = (CHECKPOINT_COPIES + _FETCH_COPIES) * _variable_bytes(program)
    return values + saved + processes * (dataset_bytes(experiment) + PROGRAM_BYTES)


def _variable_bytes(program: Program) -> int:
    """Return the bytes of one copy of all variables."""
    return sum(spec.nbytes for spec in program.variables.values())


def _total(memory: Sequence[ProcessMemory]) -> int:
    return sum(each.total for each in memory)


def gib(count: int) -> str:
    """Return bytes as text in GiB."""
    return f"{count / _GIB:,.2f} GiB"
