"""Element-wise calls of one program as one launch: the updates of many variables, each of them small.

What makes a GPU fast is many elements at once; a launch costs some microseconds, however few there are. Put together
are calls whose results nothing reads in what follows, as those of updates: they can wait for each other without holding
up anything else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from runner.kernels.gpu.calls import StreamCall, blocks_for, launch
from runner.kernels.gpu.element_kernels import FlatCall
from runner.kernels.gpu.element_loops import CHUNK
from runner.kernels.gpu.runtime import Argument, DeviceMemory, Runtime
from runner.kernels.gpu.streams import Span, Touched


class _Places:
    """Memory, as spans that rise and do not meet."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def touch(self, spans: Sequence[Span]) -> bool:
        """Whether any of it is in one of the spans."""
        return any(
            begin < end and bisect_right(self._ends, begin) < bisect_left(self._begins, end) for begin, end in spans
        )

    def add(self, spans: Sequence[Span]) -> None:
        """Take spans in."""
        for begin, end in spans:
            if begin < end:
                first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
                if first < last:
                    begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
                self._begins[first:last] = [begin]
                self._ends[first:last] = [end]


@dataclass
class _Home:
    """A group that earlier works may join. written: by anybody, from its first member on to its last."""

    members: list[int]
    written: _Places = field(default_factory=_Places)


def groups(touched: Sequence[Touched], programs: Sequence[Hashable | None]) -> list[list[int]]:
    """Which works may be one, as rising numbers, in an order of the groups that gives what the works give in theirs.

    programs: only works of one program are put together; None is with nobody. Each work waits for the group's last.
    """
    backwards: list[list[int]] = []
    homes: dict[Hashable, _Home] = {}
    later = _Places()
    for number in reversed(range(len(touched))):
        work, program = touched[number], programs[number]
        can_wait = program is not None and not later.touch(work.writes)
        home = homes.get(program) if can_wait else None
        if home is not None and not home.written.touch(work.reads):
            home.members.insert(0, number)
        else:
            home = _Home([number])
            backwards.append(home.members)
        if can_wait:
            homes[program] = home
        later.add((*work.reads, *work.writes))
        for each in homes.values():
            each.written.add(work.writes)
    return backwards[::-1]


def together(runtime: Runtime, calls: Sequence[FlatCall]) -> StreamCall:
    """One launch of calls of one program, whose order does not matter.

    Copies a table to the GPU and waits for that: not to be called while anything is captured.
    """
    rows, chunks = table(calls)
    memory = _copied(runtime, rows)
    arguments: list[Argument] = [np.uintp(memory.address), np.int32(len(calls)), np.int64(chunks)]
    one = launch(runtime.function(calls[0].batch, "batch"), blocks_for(runtime, chunks, threads=1), arguments)
    return StreamCall(one.enqueue, (memory, *calls))


def table(calls: Sequence[FlatCall]) -> tuple[NDArray[np.int64], int]:
    """A row for each call, as ``batch`` reads it, and the number of chunks of all."""
    chunks = [-(-call.count // CHUNK) for call in calls]
    *first, total = accumulate(chunks, initial=0)
    rows = [[start, call.count, *call.addresses] for start, call in zip(first, calls, strict=True)]
    return np.array(rows, np.uint64).view(np.int64), total


def _copied(runtime: Runtime, rows: NDArray[np.int64]) -> DeviceMemory:
    pinned, memory, stream = runtime.pinned(rows.nbytes), runtime.allocate(rows.nbytes), runtime.stream()
    pinned[:] = np.frombuffer(rows.tobytes(), np.uint8)
    runtime.copy(memory.address, pinned.ctypes.data, rows.nbytes, stream)
    runtime.synchronize(stream)
    return memory
