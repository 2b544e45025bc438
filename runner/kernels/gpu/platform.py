"""The platform of a GPU. Work on streams is captured once as a graph and replayed in every step."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.kernels.contract import Bound, Operand
from runner.kernels.gpu.element_kernels import FlatCall
from runner.kernels.gpu.feeding import GpuWriter, PinnedStage
from runner.kernels.gpu.runtime import CapturedGraph, DeviceMemory, Event, Runtime, Stream, StreamCall
from runner.kernels.gpu.streams import Touched, Turn, assign_streams, groups, together
from runner.kernels.memory import Bytes, numpy_dtype
from runner.kernels.platform import JoinedCalls, PartError, Work, Writer

Array = NDArray[Any]

BRANCHES = 4
"""The number of streams of one logical device: as many as a GoogLeNet module has branches."""


class GpuPlatform:
    """See :class:`~runner.kernels.platform.Platform`: one logical device on a GPU.

    Several logical devices may share a GPU; each has its own streams.
    """

    is_asynchronous = True

    def __init__(self, runtime: Runtime, gpu: int) -> None:
        self._runtime = runtime
        self._gpu = gpu
        self.enter()
        self._streams = tuple(runtime.stream() for _ in range(BRANCHES))
        self._copies = runtime.stream()
        self._stage = PinnedStage(runtime)

    @property
    def _main(self) -> Stream:
        return self._streams[0]

    def enter(self) -> None:
        """Make this thread use this GPU."""
        self._runtime.use(self._gpu)

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Allocate memory of the GPU; raises MemoryError with the free and total bytes."""
        self.enter()
        try:
            return self._allocated(nbytes)
        except MemoryError as error:
            free, total = self._runtime.free_bytes()
            raise MemoryError(
                f"GPU {self._gpu} ({self._runtime.name}) has {free:,} of {total:,} bytes free: {error}"
            ) from None

    def _allocated(self, nbytes: int) -> DeviceMemory:
        try:
            return self._runtime.allocate(nbytes)
        except MemoryError:
            # Closed sessions are reference cycles, whose GPU memory is freed only by the garbage collector.
            gc.collect()
        return self._runtime.allocate(nbytes)

    def writer(self, target: Operand) -> Writer:
        """Return a writer that can copy the next value during a step, through pinned memory on a separate stream."""
        return GpuWriter(
            self._runtime, self.allocate, self._gpu_memory(target.data), self._stage, self._copies, self._main
        )

    def reader(self, sources: Sequence[Operand]) -> Callable[[], list[Array]]:
        """Return a reader that copies all values to pinned memory and then waits once."""
        staged = [self._runtime.pinned(source.spec.nbytes) for source in sources]

        def read() -> list[Array]:
            for source, place in zip(sources, staged, strict=True):
                self._runtime.copy(place.ctypes.data, source.address, source.spec.nbytes, self._main)
            self.finish()
            return [_plain(source, place).copy() for source, place in zip(sources, staged, strict=True)]

        return read

    def snapshot(self, data: Bytes) -> NDArray[np.uint8]:
        """Return a copy of the bytes in host memory."""
        memory, place = self._gpu_memory(data), self._runtime.pinned(data.nbytes)
        self._runtime.copy(place.ctypes.data, memory.address, memory.nbytes, self._main)
        self.finish()
        return place

    def copier(self, target: Bytes, source: Bytes) -> Bound:
        """Return the call that copies from the memory of any GPU to this GPU."""
        to, origin = self._gpu_memory(target), self._gpu_memory(source)

        def enqueue(stream: Stream) -> None:
            self._runtime.copy(to.address, origin.address, to.nbytes, stream)

        return StreamCall(enqueue, (to, origin))

    def joinable(self, call: Bound) -> bool:
        """Return whether the call is work on a stream."""
        return isinstance(call, StreamCall)

    def join(self, works: Sequence[Work], *, once: bool = False) -> JoinedCalls:
        """Return one call that runs all works.

        The first run is eager, because libraries are initialized by their first calls. The second run captures a graph;
        the second and all later runs launch this graph. With ``once``, or if a call cannot be captured, all runs are
        eager. Element-wise calls of one program are combined into one launch where possible; see ``streams.groups``.
        """
        parts = [[number] for number in range(len(works))] if once else _parts(works)
        calls = [self._one([_stream_call(works[number]) for number in part]) for part in parts]
        touched = [_touched([works[number] for number in part]) for part in parts]
        turns = assign_streams(touched, 1 if once else len(self._streams))
        captures = not once and all(call.captured for call in calls)
        replay = _Replay(self._runtime, self._streams, calls, turns, captures)
        failing = [(number, call.failures) for number, call in enumerate(calls) if call.failures is not None]

        def reason(part: int, status: int) -> str:
            failures = calls[part].failures
            return failures.explain(status) if failures is not None else f"status {status}"

        def late() -> int:
            statuses = [(number, int(failures.word[0])) for number, failures in failing]
            for _, failures in failing:
                failures.word[0] = 0
            return next(((1 + number) << 16 | status for number, status in statuses if status), 0)

        return JoinedCalls(replay, tuple(part[0] for part in parts), reason, late if failing else None)

    def _one(self, calls: Sequence[StreamCall]) -> StreamCall:
        """Return one call for a part: the launch that combines its element-wise calls, or its only call."""
        flat = [call for call in calls if isinstance(call, FlatCall)]
        return together(self._runtime, flat) if len(flat) > 1 else calls[0]

    def mark(self) -> object:
        """Return an event that is recorded after all enqueued work."""
        event = self._runtime.event()
        self._runtime.record(event, self._main)
        return event

    def follow(self, mark: object) -> None:
        """Make the main stream wait for a mark."""
        event: Any = mark
        self._runtime.wait(self._main, event)

    def finish(self) -> None:
        """Wait for the main stream, which itself waits for the other streams at the end of each joined call."""
        self._runtime.synchronize(self._main)

    def synchronize(self) -> None:
        """Wait for the stream of copies and the main stream."""
        self._runtime.synchronize(self._copies)
        self.finish()

    @staticmethod
    def _gpu_memory(data: Bytes) -> DeviceMemory:
        if not isinstance(data, DeviceMemory):
            raise TypeError(f"expected GPU memory, got host memory: {type(data).__name__}")
        return data


@dataclass
class _Replay:
    """A joined call. The first run (without ``captures``, every run) enqueues the calls; other runs launch a graph."""

    runtime: Runtime
    streams: tuple[Stream, ...]
    calls: Sequence[StreamCall]
    turns: Sequence[Turn]
    captures: bool
    has_run: bool = False
    graph: CapturedGraph | None = None

    def __post_init__(self) -> None:
        waited = {each for turn in self.turns for each in turn.after}
        branches = sorted({turn.stream for turn in self.turns} - {0})
        self._ends: dict[int, Event] = {branch: self.runtime.event() for branch in branches}
        self._start = self.runtime.event()
        self._done: dict[int, Event] = {number: self.runtime.event() for number in waited}

    def __call__(self) -> int:
        if not self.captures or not self.has_run:
            self._enqueue()
            self.has_run = True
            return 0
        if self.graph is None:
            self.graph = self.runtime.capture(self.streams[0], self._enqueue)
        self.graph.launch(self.streams[0])
        return 0

    def _enqueue(self) -> None:
        """Enqueue all calls. The other streams branch off the first stream and join it at the end."""
        runtime, main = self.runtime, self.streams[0]
        if self._ends:
            runtime.record(self._start, main)
        for branch in self._ends:
            runtime.wait(self.streams[branch], self._start)
        for number, (call, turn) in enumerate(zip(self.calls, self.turns, strict=True)):
            stream = self.streams[turn.stream]
            for earlier in turn.after:
                runtime.wait(stream, self._done[earlier])
            try:
                call.enqueue(stream)
            except Exception as error:
                raise PartError(number) from error
            if number in self._done:
                runtime.record(self._done[number], stream)
        for branch, end in self._ends.items():
            runtime.record(end, self.streams[branch])
            runtime.wait(main, end)


def _stream_call(work: Work) -> StreamCall:
    if not isinstance(work.call, StreamCall):
        raise TypeError(f"{type(work.call).__name__} is not work on a stream")
    return work.call


def _parts(works: Sequence[Work]) -> list[list[int]]:
    """Return, for each launch in order, the indices of the works that it runs."""
    calls = [_stream_call(work) for work in works]
    programs = [call.batch if isinstance(call, FlatCall) else None for call in calls]
    return groups([_touched([work]) for work in works], programs)


def _touched(works: Sequence[Work]) -> Touched:
    reads = tuple(_span(data) for work in works for data in work.reads)
    turns = [turn for work in works if (turn := _stream_call(work).turn) is not None]
    return Touched(reads, tuple(_span(data) for data in (*(data for work in works for data in work.writes), *turns)))


def _span(data: Bytes) -> tuple[int, int]:
    memory: Any = data
    return memory.address, memory.address + memory.nbytes


def _plain(operand: Operand, place: NDArray[np.uint8]) -> Array:
    return place[: operand.spec.nbytes].view(numpy_dtype(operand.spec.dtype)).reshape(operand.spec.shape)
