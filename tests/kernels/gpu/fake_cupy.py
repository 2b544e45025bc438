"""A fake of the part of CuPy that the kernels use. The fake records all calls in order."""

from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any


class CUDARuntimeError(RuntimeError):
    """A fake of CuPy's error of this name. status: a value of the enumeration cudaError."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


@dataclass
class FakeCupy:
    """A fake of the module. gpus: number of GPUs, or the negated status with which counting them fails.

    memory: free bytes of each GPU. capabilities: GPU -> compute capability, for GPUs whose capability is not 90.
    """

    gpus: int = 2
    memory: int = 1 << 20
    log: list[tuple[Any, ...]] = field(default_factory=list)
    device: int = 0
    fails_at_end_of_capture: bool = False
    capabilities: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._addresses = count(0x1000, 0x1000)
        self.cuda = SimpleNamespace(
            runtime=FakeCudaRuntime(self),
            Memory=self._memory,
            Module=lambda: FakeModule(self),
            PinnedMemory=self._pinned,
            PinnedMemoryPointer=lambda memory, offset: memoryview(memory)[offset:],
            Stream=lambda *, non_blocking: FakeStream(self, next(self._addresses), non_blocking),
            Event=lambda disable_timing=False: FakeEvent(self, disable_timing),
            get_elapsed_time=lambda begin, end: 12.0,
        )

    def _memory(self, nbytes: int) -> SimpleNamespace:
        self._take(nbytes)
        return SimpleNamespace(ptr=next(self._addresses))

    def _pinned(self, nbytes: int, flags: int) -> bytearray:
        assert flags == 3, "pinned memory must be portable and mapped"
        self._take(nbytes)
        return bytearray(nbytes)

    def _take(self, nbytes: int) -> None:
        if nbytes > self.memory:
            raise CUDARuntimeError(2 if nbytes < 1 << 40 else 700)


@dataclass
class FakeCudaRuntime:
    """A fake of ``cupy.cuda.runtime``."""

    cupy: FakeCupy
    memcpyDefault = 4  # noqa: N815 - the names that CuPy gives
    hostAllocPortable = 1  # noqa: N815
    hostAllocMapped = 2  # noqa: N815
    CUDARuntimeError = CUDARuntimeError

    def getDeviceCount(self) -> int:  # noqa: N802
        if self.cupy.gpus < 0:
            raise CUDARuntimeError(-self.cupy.gpus)
        return self.cupy.gpus

    def getDeviceProperties(self, gpu: int) -> dict[str, Any]:  # noqa: N802
        if not 0 <= gpu < self.cupy.gpus:
            raise CUDARuntimeError(101)
        major, minor = divmod(self.cupy.capabilities.get(gpu, 90), 10)
        return {"name": b"A GPU", "major": major, "minor": minor, "multiProcessorCount": 132}

    def runtimeGetVersion(self) -> int:  # noqa: N802
        return 13020

    def setDevice(self, gpu: int) -> None:  # noqa: N802
        self.cupy.device = gpu

    def getDevice(self) -> int:  # noqa: N802
        return self.cupy.device

    def deviceCanAccessPeer(self, gpu: int, other: int) -> int:  # noqa: N802
        return int({gpu, other} != {0, 2})

    def _deviceEnsurePeerAccess(self, other: int) -> None:  # noqa: N802
        self.cupy.log.append(("reach", self.cupy.device, other))

    def memcpyAsync(self, *arguments: int) -> None:  # noqa: N802
        self.cupy.log.append(("copy", *arguments))

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        return self.cupy.memory, 2 * self.cupy.memory


@dataclass
class FakeModule:
    """A fake CUDA module: machine code that is loaded on a GPU."""

    cupy: FakeCupy

    def load(self, code: bytes) -> None:
        self.cupy.log.append(("load", self.cupy.device, code))

    def get_function(self, name: str) -> Any:
        def call(grid: Any, block: Any, arguments: Any, *, stream: FakeStream) -> None:
            assert (type(grid), type(block)) == (tuple, tuple), "CuPy accepts only tuples"
            self.cupy.log.append(("launch", name, grid, block, arguments, stream.ptr))

        return call


@dataclass
class FakeStream:
    """A fake stream; the graph that it captures records its launches."""

    cupy: FakeCupy
    ptr: int
    non_blocking: bool

    def begin_capture(self) -> None:
        self.cupy.log.append(("begin capture", self.ptr))

    def end_capture(self) -> Any:
        self.cupy.log.append(("end capture", self.ptr))
        if self.cupy.fails_at_end_of_capture:
            raise CUDARuntimeError(901)
        return SimpleNamespace(launch=lambda stream: self.cupy.log.append(("graph", stream.ptr)))

    def wait_event(self, event: "FakeEvent") -> None:
        self.cupy.log.append(("wait", self.ptr))

    def synchronize(self) -> None:
        self.cupy.log.append(("synchronize", self.ptr))


@dataclass
class FakeEvent:
    """A fake event."""

    cupy: FakeCupy
    disable_timing: bool

    def record(self, stream: FakeStream) -> None:
        self.cupy.log.append(("record", stream.ptr))

    def synchronize(self) -> None:
        self.cupy.log.append(("wait on host",))
