"""Neighbouring calls of one element-wise program as one launch: the updates of many variables, each of them small.

What makes a card fast is many elements at once; a launch costs some microseconds however few there are. The calls of a
launch read and write nothing that another of them writes, so that their order does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, product

import numpy as np
from numpy.typing import NDArray

from runner.kernels.gpu.calls import StreamCall, blocks_for, launch
from runner.kernels.gpu.element_kernels import FlatCall
from runner.kernels.gpu.element_loops import CHUNK
from runner.kernels.gpu.runtime import Argument, DeviceMemory, Runtime


def groups(calls: Sequence[StreamCall]) -> list[list[int]]:
    """Which calls may be one, as positions, in an order of the groups that gives what the calls give in theirs.

    Calls of one source are together where what lies between lets them. A pure function; all calls are in one group
    each.
    """
    found: list[list[int]] = []
    for position, call in enumerate(calls):
        home = _home(calls, found, call)
        if home is None:
            found.append([position])
        else:
            home.append(position)
    return found


def together(runtime: Runtime, calls: Sequence[FlatCall]) -> StreamCall:
    """One launch of calls that :func:`groups` put together.

    Copies a table to the card and waits for that, so not while anything is captured.
    """
    if len(calls) == 1:
        return calls[0]
    rows, chunks = table(calls)
    memory = _copied(runtime, rows)
    arguments: list[Argument] = [np.uintp(memory.address), np.int32(len(calls)), np.int64(chunks)]
    function = runtime.function(calls[0].batch, "batch")
    one = launch(function, blocks_for(runtime, chunks, threads=1), arguments)
    return StreamCall(one.enqueue, (memory, *calls))


def table(calls: Sequence[FlatCall]) -> tuple[NDArray[np.int64], int]:
    """A row for each call, as ``batch`` reads it, and the number of chunks of all."""
    chunks = [-(-call.count // CHUNK) for call in calls]
    *first, total = accumulate(chunks, initial=0)
    rows = [[start, call.count, *call.addresses] for start, call in zip(first, calls, strict=True)]
    return np.array(rows, np.uint64).view(np.int64), total


def _home(calls: Sequence[StreamCall], found: Sequence[list[int]], call: StreamCall) -> list[int] | None:
    """The group that a call joins: of its program, the latest that nothing the call must follow comes after or is in.

    A call of another kind may touch anything, so that nothing passes it.
    """
    if not isinstance(call, FlatCall):
        return None
    for group in reversed(found):
        members = [calls[position] for position in group]
        if any(not isinstance(each, FlatCall) or _conflict(each, call) for each in members):
            return None
        if isinstance(members[0], FlatCall) and members[0].batch == call.batch:
            return group
    return None


def _conflict(one: FlatCall, other: FlatCall) -> bool:
    """Whether one of them writes what the other reads or writes."""
    written = chain(product(one.writes, (*other.reads, *other.writes)), product(one.reads, other.writes))
    return any(begin < other_end and other_begin < end for (begin, end), (other_begin, other_end) in written)


def _copied(runtime: Runtime, rows: NDArray[np.int64]) -> DeviceMemory:
    pinned, memory, stream = runtime.pinned(rows.nbytes), runtime.allocate(rows.nbytes), runtime.stream()
    pinned[:] = np.frombuffer(rows.tobytes(), np.uint8)
    runtime.copy(memory.address, pinned.ctypes.data, rows.nbytes, stream)
    runtime.synchronize(stream)
    return memory
