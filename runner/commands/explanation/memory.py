"""What every process of a run needs of this machine's memory."""

from __future__ import annotations

from collections.abc import Sequence

from runner.commands.text_table import number, text_table
from runner.memory import available_memory, usable_memory
from runner.training.memory import PROGRAM_BYTES, ProcessMemory, fit_text

_MIB = 2**20


def memory_text(memory: Sequence[ProcessMemory]) -> str:
    """A row for each process, in MiB, and whether all of them fit."""
    headers = ("process", "variables", "step", "sent", "data", "checkpoint", "program", "MiB in all")
    table = text_table(headers, [(each.process, *map(_mib, _parts(each))) for each in memory])
    return f"{table}\n\n{fit_text(memory, usable_memory(), available_memory())}"


def _parts(each: ProcessMemory) -> tuple[int, ...]:
    return (each.variables, each.step, each.sent, each.data, each.checkpoint, PROGRAM_BYTES, each.total)


def _mib(count: int) -> str:
    """Whole MiB, rounded up."""
    return number(-(-count // _MIB))
