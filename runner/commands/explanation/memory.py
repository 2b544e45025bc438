"""The planned memory of every process and every GPU of a run."""

from collections.abc import Sequence

from runner.kernels.gpu.driver import GpuFacts
from runner.system.machine import available_memory, usable_memory
from runner.system.text import number, text_table
from runner.training.memory import CONTEXT_BYTES, PROGRAM_BYTES, GpuMemory, ProcessMemory, fit_text, gpu_fit_text

_MIB = 2**20


def memory_text(memory: Sequence[ProcessMemory]) -> str:
    """Return a table with a row for each process, in MiB, and whether all processes fit."""
    headers = ("process", "variables", "step", "sent", "data", "checkpoint", "program", "MiB in all")
    table = text_table(headers, [(each.process, *map(_mib, _parts(each))) for each in memory])
    return f"{table}\n\n{fit_text(memory, usable_memory(), available_memory())}"


def gpu_memory_lines(memory: Sequence[GpuMemory], gpus: Sequence[GpuFacts]) -> list[str]:
    """Return a table with a row for each used GPU, in MiB, and whether the run fits; empty without GPUs."""
    if not memory:
        return []
    there = {gpu.number: gpu for gpu in gpus}
    headers = ("gpu", "devices", "processes", "variables", "step", "fed and sent", "contexts", "MiB in all")
    rows = [
        (
            str(each.gpu),
            number(len(each.devices)),
            number(each.processes),
            *map(_mib, (each.variables, each.step, each.moved, each.processes * CONTEXT_BYTES, each.total)),
        )
        for each in memory
    ]
    return ["", text_table(headers, rows), "", *(gpu_fit_text(each, there[each.gpu]) for each in memory)]


def _parts(each: ProcessMemory) -> tuple[int, ...]:
    return (each.variables, each.step, each.sent, each.data, each.checkpoint, PROGRAM_BYTES, each.total)


def _mib(count: int) -> str:
    """Return bytes as whole MiB, rounded up."""
    return number(-(-count // _MIB))
