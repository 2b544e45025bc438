"""An emulated GPU: our CUDA sources compiled for the host, and streams that run work as late as possible.

Work on a stream runs only at synchronization, so code that forgets to synchronize finds stale memory. Memory starts as
NaN and has guard bytes around it. A kernel fails if it is launched with arguments of wrong sizes or if its threads
wait at different barriers.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.kernels.gpu.runtime import Argument, DeviceMemory, Size

HEADER = Path(__file__).with_name("emulation.hpp")
GUARD = 256
UNSET, FENCE = 0xFF, b"\xfe" * GUARD
"""UNSET fills unwritten memory; as a float, it is NaN. FENCE is a guard around memory; as floats, it is huge."""
# -fno-gnu-unique: kernels that have the same name in different sources must not share static memory.
COMPILER = ("g++", "-std=c++17", "-O1", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-gnu-unique", "-fPIC")
WORKING = threading.Condition(threading.RLock())
PATIENCE_S = 30.0
WAITING = "__syncthreads"
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(')

Work = Callable[[], None]


@dataclass
class Capture:
    """A capture: the captured work, in an order in which it can run, and the streams whose work is captured."""

    works: list[Work] = field(default_factory=list)
    streams: "list[EmulatedStream]" = field(default_factory=list)

    def join(self, stream: "EmulatedStream") -> None:
        """Capture later work of the stream."""
        stream.capturing = self
        self.streams.append(stream)


@dataclass
class EmulatedStream:
    """A stream: a queue of work. done: number of works that have started. worker: the thread that runs one of them."""

    handle: int
    gpu: int = 0
    queue: list[Work] = field(default_factory=list)
    done: int = 0
    worker: int | None = None
    capturing: Capture | None = None

    def put(self, work: Work) -> None:
        """Enqueue work, or record it in a capture that is in progress."""
        (self.queue if self.capturing is None else self.capturing.works).append(work)

    def drain(self, until: int) -> None:
        """Run the queue up to position ``until``. Threads take turns, because compiled kernels share state.

        Work that waits for other threads lets other streams run and blocks only its own stream.
        """
        me = threading.get_ident()
        with WORKING:
            while self.done < until:
                if self.worker not in (None, me):
                    assert WORKING.wait(PATIENCE_S), f"stream {self.handle} made no progress for too long"
                    continue
                before, self.worker = self.worker, me
                self.done += 1
                try:
                    self.queue[self.done - 1]()
                finally:
                    self.worker = before
                    WORKING.notify_all()


@dataclass
class EmulatedEvent:
    """An event. Once it is recorded, it marks a position in a stream; before that, it has no stream."""

    gpu: int = 0
    stream: EmulatedStream | None = None
    position: int = 0
    capture: Capture | None = None


@dataclass
class EmulatedGraph:
    """Captured work, which every launch runs again."""

    works: list[Work]

    def launch(self, stream: EmulatedStream) -> None:
        """Enqueue all captured work."""
        for work in self.works:
            stream.put(work)


@dataclass(frozen=True)
class EmulatedFunction:
    """A kernel compiled for the host. together: whether the threads of a block wait for each other."""

    name: str
    entry: Any
    together: bool
    runtime: "EmulatedRuntime"
    gpu: int = 0

    def __call__(self, stream: EmulatedStream, grid: Size, block: Size, arguments: Sequence[Argument]) -> None:
        assert self.gpu == stream.gpu, f"{self.name} of GPU {self.gpu} on a stream of GPU {stream.gpu}"
        for argument in arguments:
            assert isinstance(argument, np.generic), f"{self.name}: {argument!r} is not a NumPy scalar"
        assert 1 <= block[0] * block[1] * block[2] <= 1024, f"{self.name}: block {block}"
        assert min(grid) >= 1, f"{self.name}: grid {grid}"
        assert max(grid[1:]) <= 65535, f"{self.name}: grid {grid}"
        values = [np.array(argument) for argument in arguments]
        stream.put(lambda: self._run(grid, block, values))

    def _run(self, grid: Size, block: Size, values: Sequence[NDArray[Any]]) -> None:
        count = len(values)
        pointers = (ctypes.c_void_p * (count + 1))(*[value.ctypes.data for value in values])
        sizes = (ctypes.c_int * (count + 1))(*[value.nbytes for value in values])
        three = ctypes.c_uint * 3
        status = self.entry(
            three(*grid), three(*block), pointers, sizes, count, int(self.together), int(self.runtime.reversed)
        )
        if status >= 101:
            raise AssertionError(f"{self.name}: argument {status - 101} has {values[status - 101].nbytes} bytes")
        if status:
            raise AssertionError(
                f"{self.name}: " + (f"does not take {count} arguments" if status == 100 else "threads wait forever")
            )


class EmulatedRuntime:
    """The runtime of an emulated GPU; see :class:`~runner.kernels.gpu.runtime.Runtime`.

    folder: the cache of compiled sources. nbytes: the size of the memory. gpus: the number of GPUs; a kernel of one GPU
    fails on a stream of another. Set by tests: reversed (whether the last thread of a block runs first), libraries.
    """

    name = "emulated GPU"
    multiprocessors = 2

    def __init__(self, folder: Path, *, nbytes: int = 1 << 30, gpus: int = 1) -> None:
        self._gpus = gpus
        self._used = threading.local()
        self.folder = folder
        self.reversed = False
        self._free = self._total = nbytes
        self._guards: list[tuple[NDArray[np.uint8], NDArray[np.uint8], int]] = []
        self._functions: dict[tuple[int, str, str], EmulatedFunction] = {}
        self.streams: dict[int, EmulatedStream] = {}
        self.libraries: dict[str, Any] = {}

    @property
    def gpu(self) -> int:
        """The GPU that the current thread uses."""
        return getattr(self._used, "gpu", 0)

    def use(self, gpu: int) -> None:
        if gpu >= self._gpus:
            raise RuntimeError(f"GPU {gpu}: the emulated GPUs are numbered from 0 to {self._gpus - 1}")
        self._used.gpu = gpu

    def function(self, source: str, name: str) -> EmulatedFunction:
        key = self.gpu, source, name
        if key not in self._functions:
            library = compiled(source, self.folder)
            together = WAITING in source
            self._functions[key] = EmulatedFunction(name, getattr(library, f"emulate_{name}"), together, self, self.gpu)
        return self._functions[key]

    def allocate(self, nbytes: int) -> DeviceMemory:
        if nbytes > self._free:
            raise MemoryError(f"{nbytes} bytes of an emulated GPU that has {self._free} left")
        self._free -= nbytes
        raw = np.full(nbytes + 2 * GUARD + 256, UNSET, np.uint8)
        start = GUARD + (-(raw.ctypes.data + GUARD) % 256)
        before, after = raw[start - GUARD : start], raw[start + nbytes : start + nbytes + GUARD]
        before[:] = after[:] = FENCE[0]
        self._guards.append((before, after, nbytes))
        return DeviceMemory(raw.ctypes.data + start, nbytes, raw)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        raw = np.full(nbytes + 64, UNSET, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + nbytes]

    def stream(self) -> EmulatedStream:
        stream = EmulatedStream(len(self.streams) + 1, self.gpu)
        self.streams[stream.handle] = stream
        return stream

    def event(self) -> EmulatedEvent:
        return EmulatedEvent(self.gpu)

    def record(self, event: EmulatedEvent, stream: EmulatedStream) -> None:
        assert event.gpu == stream.gpu, f"an event of GPU {event.gpu} on a stream of GPU {stream.gpu}"
        event.stream = stream
        event.position = len(stream.queue)
        event.capture = stream.capturing

    def wait(self, stream: EmulatedStream, event: EmulatedEvent) -> None:
        source, position = event.stream, event.position
        if source is None or source is stream:
            return
        if event.capture is not None:
            assert source.capturing is event.capture, "a stream waits for an event of a capture that is over"
        if event.capture is not None and stream.capturing is None:
            # The stream joins the capture. A stream that waits for an event from before the capture does not join:
            # it may belong to another device.
            event.capture.join(stream)
        if stream.capturing is None:
            stream.put(lambda: source.drain(position))

    def copy(self, target: int, source: int, nbytes: int, stream: EmulatedStream) -> None:
        stream.put(lambda: ctypes.memmove(target, source, nbytes) and None)

    def synchronize(self, stream: EmulatedStream) -> None:
        assert stream.capturing is None, "a capture must not wait"
        stream.drain(len(stream.queue))
        self.check_guards()

    def wait_on_host(self, event: EmulatedEvent) -> None:
        if event.stream is not None:
            event.stream.drain(event.position)

    def capture(self, stream: EmulatedStream, work: Callable[[], None]) -> EmulatedGraph:
        capture = Capture()
        capture.join(stream)
        before = self._free
        try:
            work()
        finally:
            for each in capture.streams:
                each.capturing = None
        assert self._free == before, "a capture must not allocate"
        return EmulatedGraph(capture.works)

    def free_bytes(self) -> tuple[int, int]:
        return self._free, self._total

    def library(self, name: str) -> Any:
        return self.libraries.get(name)

    def check_guards(self) -> None:
        """Fail if a kernel wrote directly before or after an allocation."""
        for before, after, nbytes in self._guards:
            intact = before.tobytes() == after.tobytes() == FENCE
            assert intact, f"a kernel wrote outside of its {nbytes} bytes"


def sources_folder(request: pytest.FixtureRequest) -> Path:
    """Return the cache folder of compiled sources, shared by all processes and later runs.

    Skip the test if there is no compiler.
    """
    if shutil.which("g++") is None:
        pytest.skip("an emulated GPU needs g++")
    cache = getattr(request.config, "cache", None)
    if cache is None:  # pytest runs without its cache
        factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        return factory.mktemp("emulated_gpu")
    return Path(cache.mkdir("emulated_gpu"))


def compiled(source: str, folder: Path) -> ctypes.PyDLL:
    """Compile a source for the host and return the library; the folder keeps libraries for later calls."""
    names = _KERNEL.findall(source)
    assert names, 'no kernel in the source; expected: extern "C" __global__ void NAME('
    entries = "".join(
        f'extern "C" int emulate_{name}(const unsigned *g, const unsigned *b, void **a, const int *s, int n, int t, '
        f"int r) {{ return emulation::Entry<{name}, decltype(&{name})>::launch({{g, b, a, s, n, t, r}}); }}\n"
        for name in names
    )
    emulator = _emulator(folder)
    whole = f'#include "{HEADER.name}"\n{source}\n{entries}'
    stem = folder / _digest(whole + emulator.parent.name)
    library = stem.with_suffix(".so")
    if not library.exists():
        stem.with_suffix(".cpp").write_text(whole)
        _compile(library, f"-I{emulator.parent}", "-shared", str(stem.with_suffix(".cpp")), str(emulator))
    # PyDLL holds the GIL, so that only one launch at a time uses static memory.
    return ctypes.PyDLL(str(library))


def _emulator(folder: Path) -> Path:
    """Return the compiled functions of the header, in a folder with the precompiled header."""
    inside = folder / f"header_{_digest(HEADER.read_text())}"
    made = inside / f"{HEADER.name}.o"
    if not made.exists():
        inside.mkdir(exist_ok=True)
        _compile(inside / f"{HEADER.name}.gch", "-x", "c++-header", str(HEADER))
        _compile(made, "-x", "c++", "-DEMULATION", "-c", str(HEADER))
    return made


def _compile(made: Path, *arguments: str) -> None:
    """Compile to a temporary file and rename it, so that concurrent processes never see a partial file."""
    own = made.with_suffix(f".{os.getpid()}")
    done = subprocess.run([*COMPILER, *arguments, "-o", own], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the source does not compile:\n{done.stderr[:4000]}"
    own.replace(made)


def _digest(text: str) -> str:
    return hashlib.sha256((" ".join(COMPILER) + text).encode()).hexdigest()[:24]
