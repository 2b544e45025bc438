"""The schedule of a step: streams for independent branches, and one launch for many element-wise calls.

Before the first run, streams and launches are chosen from the memory that each :class:`runner.kernels.platform.Work`
reads and writes. If two calls touch the same bytes and one of them writes, they keep their order, even if the bytes
belong to different values. A launch costs some microseconds, even for few elements. Calls whose results no later
call of the step reads, such as updates of many small variables, can therefore be delayed and combined.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from runner.kernels.gpu.element_kernels import FlatCall
from runner.kernels.gpu.element_loops import CHUNK
from runner.kernels.gpu.runtime import Argument, DeviceMemory, Runtime, StreamCall, blocks_for, launch

Span = tuple[int, int]
"""The address of the first byte, and the address after the last byte."""


@dataclass(frozen=True)
class Touched:
    """The memory that one call reads and writes."""

    reads: tuple[Span, ...]
    writes: tuple[Span, ...]


@dataclass(frozen=True)
class Turn:
    """The stream of one call, and the earlier calls on other streams that must finish first."""

    stream: int
    after: tuple[int, ...]


def assign_streams(works: Sequence[Touched], streams: int) -> list[Turn]:
    """Return the turn of each call, in order; the first call is on stream 0.

    If a call depends on the last calls of some streams, it runs on the stream of the latest of them. Otherwise, it runs
    on the stream whose last call is the earliest. Redundant waits are omitted.
    """
    turns: list[Turn] = []
    last = [-1] * streams
    reached: list[list[int]] = []
    for number, needed in enumerate(_needs(works)):
        stream = _stream_for(needed, turns, last)
        # For each stream, the latest call that is known to be complete before this call starts.
        seen = list(reached[last[stream]]) if last[stream] >= 0 else [-1] * streams
        after = []
        for each in sorted(needed, reverse=True):
            home = turns[each].stream
            if seen[home] < each:
                after.append(each)
                seen = [max(mine, its) for mine, its in zip(seen, reached[each], strict=True)]
        seen[stream] = number
        turns.append(Turn(stream, tuple(sorted(after))))
        reached.append(seen)
        last[stream] = number
    return turns


def _stream_for(needed: set[int], turns: Sequence[Turn], last: Sequence[int]) -> int:
    for each in sorted(needed, reverse=True):
        if last[turns[each].stream] == each:
            return turns[each].stream
    return min(range(len(last)), key=lambda stream: last[stream])


def _needs(works: Sequence[Touched]) -> list[set[int]]:
    """Return, for each call, the earlier calls that it depends on; indirect dependencies may be missing."""
    writers, readers = _Latest(), _Latest()
    needs = []
    for number, work in enumerate(works):
        needed = set(writers.touching(work.reads)) | set(writers.touching(work.writes))
        needed |= set(readers.touching(work.writes))
        for span in work.reads:
            readers.add(span, number)
        for span in work.writes:
            readers.forget(span)
            writers.put(span, number)
        needs.append(needed - {number})
    return needs


class _Latest:
    """Spans of memory, each with the number of the call that touched it."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, int]] = []

    def touching(self, spans: Iterable[Span]) -> list[int]:
        return [number for begin, end in spans for low, high, number in self._spans if low < end and begin < high]

    def add(self, span: Span, number: int) -> None:
        if span[0] < span[1]:
            self._spans.append((*span, number))

    def forget(self, span: Span) -> None:
        """Remove a span; a larger span that contains it is split."""
        begin, end = span
        kept = []
        for low, high, number in self._spans:
            if low >= end or high <= begin:
                kept.append((low, high, number))
                continue
            kept += [part for part in ((low, begin, number), (end, high, number)) if part[0] < part[1]]
        self._spans = kept

    def put(self, span: Span, number: int) -> None:
        self.forget(span)
        self.add(span, number)


class _Places:
    """A set of bytes, stored as sorted, disjoint spans."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def touch(self, spans: Sequence[Span]) -> bool:
        """Return whether any byte of the set is in one of the spans."""
        return any(
            begin < end and bisect_right(self._ends, begin) < bisect_left(self._begins, end) for begin, end in spans
        )

    def add(self, spans: Sequence[Span]) -> None:
        """Add spans; overlapping and adjacent spans are merged."""
        for begin, end in spans:
            if begin < end:
                first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
                if first < last:
                    begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
                self._begins[first:last] = [begin]
                self._ends[first:last] = [end]


@dataclass
class _Home:
    """A group that earlier calls may join. written: memory written by its last member and by calls visited later."""

    members: list[int]
    written: _Places = field(default_factory=_Places)


def groups(touched: Sequence[Touched], programs: Sequence[Hashable | None]) -> list[list[int]]:
    """Divide calls into groups, each for one launch; in order, the groups have the same results as the calls.

    programs: each call's program, or None. Calls of one program may be combined and then run at the last call's place.
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
    """Return one launch for several calls, which must have the same program and be independent of each other.

    Must not be called while a CUDA graph is captured: the function copies a table to the GPU and waits for the copy.
    """
    rows, chunks = table(calls)
    memory = _copied(runtime, rows)
    arguments: list[Argument] = [np.uintp(memory.address), np.int32(len(calls)), np.int64(chunks)]
    one = launch(runtime.function(calls[0].batch, "batch"), blocks_for(runtime, chunks, threads=1), arguments)
    return StreamCall(one.enqueue, (memory, *calls))


def table(calls: Sequence[FlatCall]) -> tuple[NDArray[np.int64], int]:
    """Return the table that the CUDA function ``batch`` reads, one row per call, and the total number of chunks."""
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
