"""Element-wise calls of one program as one launch, such as the updates of many small variables.

A launch costs some microseconds, however few elements it has. Calls whose results are not read by later calls of the
step, such as updates, are combined: they can wait for each other without delaying other work.
"""

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
    """Memory as sorted, disjoint spans."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def touch(self, spans: Sequence[Span]) -> bool:
        """Whether any of the memory is in one of the spans."""
        return any(
            begin < end and bisect_right(self._ends, begin) < bisect_left(self._begins, end) for begin, end in spans
        )

    def add(self, spans: Sequence[Span]) -> None:
        """Add spans."""
        for begin, end in spans:
            if begin < end:
                first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
                if first < last:
                    begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
                self._begins[first:last] = [begin]
                self._ends[first:last] = [end]


@dataclass
class _Home:
    """A group that earlier works may join. written: memory that works from its first to its last member write."""

    members: list[int]
    written: _Places = field(default_factory=_Places)


def groups(touched: Sequence[Touched], programs: Sequence[Hashable | None]) -> list[list[int]]:
    """Return groups of works that may be one launch; running the groups in order gives the results of the works in
    order.

    programs: only works of one program are combined; None is never combined. Each work waits for the last of its group.
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
    """Return one launch of calls of one program, whose order does not matter.

    Copies a table to the GPU and waits for the copy, so it must not be called during a capture.
    """
    rows, chunks = table(calls)
    memory = _copied(runtime, rows)
    arguments: list[Argument] = [np.uintp(memory.address), np.int32(len(calls)), np.int64(chunks)]
    one = launch(runtime.function(calls[0].batch, "batch"), blocks_for(runtime, chunks, threads=1), arguments)
    return StreamCall(one.enqueue, (memory, *calls))


def table(calls: Sequence[FlatCall]) -> tuple[NDArray[np.int64], int]:
    """Return a row for each call, as ``batch`` reads it, and the total number of chunks."""
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
