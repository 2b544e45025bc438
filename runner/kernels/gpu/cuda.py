"""The runtime of real GPUs, implemented with CuPy. Most tests run an emulated GPU, so this module is kept short."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.kernels.gpu import collective, cublas
from runner.kernels.gpu.cudnn import library as cudnn
from runner.kernels.gpu.nvrtc import CachingCompiler
from runner.kernels.gpu.runtime import DeviceMemory, Runtime, Size

_OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation."""


_REPETITIONS = 4
"""The number of times that work is repeated to measure its time."""


class GpusError(RuntimeError):
    """There is no GPU, or a library for GPUs is missing; the message contains a remedy."""


def open_gpus(tf32: bool, *, compare_plans: bool = False, code_folder: str = "", home: int = 0) -> Runtime:
    """Return the runtime for the GPUs of this process. Raises GpusError if there are no GPUs or CuPy is missing.

    tf32: whether float32 products may round factors to 10 mantissa bits. compare_plans: whether the plans of each
    convolution are timed and the fastest plan replaces cuDNN's first plan; the fastest plan may differ between runs.
    code_folder: folder that caches the machine code of our sources, or "" for no cache. home: default GPU of threads.
    """
    try:
        import cupy
    except ImportError as error:
        raise GpusError(
            f"a GPU was requested, but CuPy cannot be imported ({error}): pip install 'runner-dataflow[gpu]'"
        ) from error
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise GpusError(
            f"a GPU was requested, but CUDA finds none: {error}; `runner doctor` lists drivers and GPUs, "
            "cluster.device=cpu needs none"
        ) from error
    if count == 0:
        raise GpusError("a GPU was requested, but CUDA finds none; check CUDA_VISIBLE_DEVICES and run `runner doctor`")
    if not 0 <= home < count:
        raise GpusError(_absence(home, count))
    code = CachingCompiler(Path(code_folder) if code_folder else None)
    return CudaRuntime(cupy, count, code, tf32=tf32, compare_plans=compare_plans, home=home)


def _capability(properties: Mapping[str, Any]) -> int:
    return 10 * int(properties["major"]) + int(properties["minor"])


def _absence(gpu: int, count: int) -> str:
    return f"GPU {gpu} was requested; this process has GPUs 0 to {count - 1}"


@dataclass(frozen=True)
class CudaStream:
    """A stream of CuPy."""

    native: Any

    @property
    def handle(self) -> int:
        """The cudaStream_t as a number."""
        return int(self.native.ptr)


OwnStream = Any
"""A :class:`CudaStream`: this runtime receives only streams that it created."""


@dataclass(frozen=True)
class CudaFunction:
    """A kernel that is loaded on a GPU."""

    native: Any

    def __call__(self, stream: OwnStream, grid: Size, block: Size, arguments: Sequence[np.generic]) -> None:
        """Enqueue a launch on a stream; NumPy scalars are passed unchanged."""
        self.native(grid, block, tuple(arguments), stream=stream.native)


@dataclass(frozen=True)
class CudaGraph:
    """A graph of captured work."""

    native: Any

    def launch(self, stream: OwnStream) -> None:
        self.native.launch(stream.native)


class CudaRuntime:
    """See :class:`~runner.kernels.gpu.runtime.Runtime`.

    cupy: the module. count: number of GPUs of this process. code: the compiler of sources. tf32, compare_plans, home:
    see :func:`open_gpus`.
    """

    def __init__(
        self, cupy: Any, count: int, code: CachingCompiler, *, tf32: bool, compare_plans: bool = False, home: int = 0
    ) -> None:
        self._cupy = cupy
        self._cuda = cupy.cuda.runtime
        self._count = count
        properties = self._cuda.getDeviceProperties(home)
        self.name = properties["name"].decode()
        self.capability = _capability(properties)
        self.multiprocessors = int(properties["multiProcessorCount"])
        self._tf32 = tf32
        self._compare_plans = compare_plans
        self._code = code
        self._capabilities = {home: self.capability}
        self._codes: dict[tuple[int, str], bytes] = {}
        self._modules: dict[tuple[int, str], Any] = {}
        self._home = home
        self._thread = threading.local()
        self._used: set[int] = set()
        self._lock = threading.Lock()
        # Held during captures and library calls, because a capture includes the internal streams of library handles.
        self._handles = threading.RLock()

    def use(self, gpu: int) -> None:
        """Make this thread use a GPU. GPUs in use access each other's memory directly if the hardware allows."""
        if not 0 <= gpu < self._count:
            raise RuntimeError(_absence(gpu, self._count))
        with self._lock:
            if gpu not in self._used:
                for other in self._used:
                    self._reach(gpu, other)
                    self._reach(other, gpu)
                self._used.add(gpu)
        self._cuda.setDevice(gpu)
        self._thread.has_chosen = True

    def _current(self) -> int:
        """Return the GPU of this thread, by default ``home``.

        A process that only plans never calls ``use``, and CUDA's default, GPU 0, may belong to another process.
        """
        if not hasattr(self._thread, "has_chosen"):
            self.use(self._home)
        return int(self._cuda.getDevice())

    def _reach(self, gpu: int, other: int) -> None:
        """Let a GPU access the memory of another GPU directly."""
        if self._cuda.deviceCanAccessPeer(gpu, other):
            self._cuda.setDevice(gpu)
            # Unlike cudaDeviceEnablePeerAccess, this function does not fail if access is already enabled.
            self._cuda._deviceEnsurePeerAccess(other)

    def function(self, source: str, name: str) -> CudaFunction:
        """Return a kernel for this thread's GPU. The source is compiled on first use."""
        key = gpu, _ = self._current(), source
        with self._lock:
            if key not in self._modules:
                module = self._cupy.cuda.Module()
                module.load(self._code_for(gpu, source))
                self._modules[key] = module
            return CudaFunction(self._modules[key].get_function(name))

    def _code_for(self, gpu: int, source: str) -> bytes:
        """Return the machine code of a source; GPUs of equal compute capability share the code."""
        if gpu not in self._capabilities:
            self._capabilities[gpu] = _capability(self._cuda.getDeviceProperties(gpu))
        kind = self._capabilities[gpu], source
        if kind not in self._codes:
            self._codes[kind] = self._code.compiled(source, self._capabilities[gpu])
        return self._codes[kind]

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Allocate GPU memory without a pool, because memory is planned once and freed with its owner."""
        with self._allocating(nbytes, "GPU memory"):
            memory = self._cupy.cuda.Memory(max(nbytes, 1))
        return DeviceMemory(int(memory.ptr), nbytes, memory)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate pinned memory that the host and all GPUs access at one address; raises MemoryError on failure."""
        flags = self._cuda.hostAllocPortable | self._cuda.hostAllocMapped
        with self._allocating(nbytes, "pinned memory"):
            memory = self._cupy.cuda.PinnedMemory(max(nbytes, 1), flags)
        return np.frombuffer(self._cupy.cuda.PinnedMemoryPointer(memory, 0), np.uint8, max(nbytes, 1))[:nbytes]

    @contextmanager
    def _allocating(self, nbytes: int, what: str) -> Iterator[None]:
        try:
            yield
        except self._cuda.CUDARuntimeError as error:
            if error.status != _OUT_OF_MEMORY:
                raise
            raise MemoryError(f"{nbytes:,} bytes of {what}: {error}") from error

    def stream(self) -> CudaStream:
        return CudaStream(self._cupy.cuda.Stream(non_blocking=True))

    def event(self) -> Any:
        return self._cupy.cuda.Event(disable_timing=True)

    def record(self, event: Any, stream: OwnStream) -> None:
        event.record(stream.native)

    def wait(self, stream: OwnStream, event: Any) -> None:
        stream.native.wait_event(event)

    def copy(self, target: int, source: int, nbytes: int, stream: OwnStream) -> None:
        """Enqueue a copy between any addresses. Between GPUs without direct access, the data pass through the host."""
        if nbytes:
            self._cuda.memcpyAsync(target, source, nbytes, self._cuda.memcpyDefault, stream.handle)

    def synchronize(self, stream: OwnStream) -> None:
        """Wait on the host for a stream. Raises CuPy's CUDARuntimeError, a RuntimeError, if work on the GPU failed."""
        stream.native.synchronize()

    def wait_on_host(self, event: Any) -> None:
        """Wait on the host for an event; returns immediately if the event was never recorded."""
        event.synchronize()

    def capture(self, stream: OwnStream, work: Callable[[], None]) -> CudaGraph:
        """Return a graph of the work that ``work`` enqueues. If ``work`` raises an error, the capture is abandoned.

        One thread captures at a time, and no other thread calls a library meanwhile.
        """
        with self._handles:
            stream.native.begin_capture()
            try:
                work()
            except BaseException:
                # Ending the capture of incomplete work also fails; the first error states the cause.
                with suppress(self._cuda.CUDARuntimeError):
                    stream.native.end_capture()
                raise
            return CudaGraph(stream.native.end_capture())

    def seconds(self, work: Callable[[OwnStream], None]) -> float:
        """Return the mean GPU time of ``work`` in seconds, over ``_REPETITIONS`` runs after a warm-up run."""
        stream, begin, end = self.stream(), self._cupy.cuda.Event(), self._cupy.cuda.Event()
        work(stream)
        self.record(begin, stream)
        for _ in range(_REPETITIONS):
            work(stream)
        self.record(end, stream)
        self.wait_on_host(end)
        milliseconds: float = self._cupy.cuda.get_elapsed_time(begin, end)
        return milliseconds / 1e3 / _REPETITIONS

    def free_bytes(self) -> tuple[int, int]:
        free, total = self._cuda.memGetInfo()
        return int(free), int(total)

    def library(self, name: str) -> Any:
        """Return ``CublasLibrary``, ``CudnnLibrary`` or ``NcclLibrary``, or None if the library is not installed."""
        if name == "nccl":
            return self._nccl
        return self._cublas if name == "cublas" else self._cudnn

    @cached_property
    def _cublas(self) -> cublas.CublasLibrary | None:
        cuda = self._cuda.runtimeGetVersion() // 1000
        return cublas.open_library(self._current, cuda, tf32=self._tf32, lock=self._handles)

    @cached_property
    def _cudnn(self) -> cudnn.CudnnLibrary | None:
        bench = self if self._compare_plans else None
        return cudnn.open_library(self._current, tf32=self._tf32, bench=bench, lock=self._handles)

    @cached_property
    def _nccl(self) -> collective.NcclLibrary | None:
        # No lock is held: a sum is never captured, and it may block until other threads of this process join the sum.
        return collective.open_library(self._current, self.allocate)
