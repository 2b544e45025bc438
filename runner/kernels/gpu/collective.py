"""Sums over GPUs by NCCL through CuPy: one communicator per GPU of a process, created when a run is set up."""

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel
from runner.kernels.functions import arrange_in_place
from runner.kernels.gpu.runtime import DeviceMemory, Runtime, Stream, StreamCall

LIBRARY = "nccl"

_TURN_BYTES = 256
_SUM = 0
_TYPES = {"int32": 2, "int64": 4, "float32": 7, "float64": 8, "bfloat16": 9}
"""_SUM is an ncclRedOp_t and _TYPES maps dtypes to ncclDataType_t, both from nccl.h."""


@dataclass(frozen=True)
class NcclCommunicator:
    """The communicator of one GPU.

    native: CuPy's communicator. turn: memory that every sum declares as written, so that streams keep sums in order.
    """

    native: Any
    rank: int
    size: int
    turn: DeviceMemory

    def enqueue(self, stream: Stream, source: int, target: int, count: int, dtype: str) -> None:
        """Enqueue the sum of ``count`` elements over all GPUs. All GPUs must call this. Source and target may be equal.

        Raises RuntimeError if NCCL returns an error or if an earlier sum has failed. After an error, no more sums are
        possible, and running sums are aborted, because they would otherwise wait for other GPUs forever.
        """
        try:
            self.native.check_async_error()
            self.native.allReduce(source, target, count, _TYPES[dtype], _SUM, stream.handle)
        except RuntimeError as error:
            self.native.abort()
            raise RuntimeError(f"the sum of {count} {dtype} as GPU {self.rank} of {self.size}: {error}") from error


class NcclLibrary:
    """NCCL for the GPUs of a process.

    nccl: CuPy's module. current_gpu: returns the number of this thread's GPU. allocate: allocates memory of this GPU.
    """

    def __init__(self, nccl: Any, current_gpu: Callable[[], int], allocate: Callable[[int], DeviceMemory]) -> None:
        self._nccl = nccl
        self._current_gpu = current_gpu
        self._allocate = allocate
        self._joined: dict[int, NcclCommunicator] = {}
        self._lock = threading.Lock()

    def unique_id(self) -> bytes:
        """Return the 128-byte id that processes pass to ``join``. This process must not end before all have joined.

        Raises RuntimeError if NCCL fails, for example because it finds no network.
        """
        try:
            return bytes(self._nccl.get_unique_id())
        except RuntimeError as error:
            raise RuntimeError(f"NCCL cannot set up a communicator: {error}") from error

    def join(self, unique_id: bytes, rank: int, size: int) -> None:
        """Join the communicator with this thread's GPU as ``rank`` of ``size``; returns when all GPUs have joined.

        Raises RuntimeError if NCCL fails or the GPU has already joined a communicator.
        """
        gpu = self._current_gpu()
        if gpu in self._joined:
            raise RuntimeError(f"GPU {gpu} cannot join {size} GPUs: it has already joined {self._joined[gpu].size}")
        try:
            native = self._nccl.NcclCommunicator(size, unique_id, rank)
        except RuntimeError as error:
            raise RuntimeError(f"GPU {gpu} cannot join {size} GPUs as number {rank}: {error}") from error
        communicator = NcclCommunicator(native, rank, size, self._allocate(_TURN_BYTES))
        with self._lock:
            self._joined[gpu] = communicator

    def communicator(self) -> NcclCommunicator:
        """Return the communicator of this thread's GPU. Raises RuntimeError if the GPU has not joined one."""
        gpu = self._current_gpu()
        if gpu not in self._joined:
            raise RuntimeError(f"a sum over GPUs: GPU {gpu} has not joined a communicator")
        return self._joined[gpu]

    def leave(self) -> None:
        """Destroy all communicators. All processes must call this while no sum is running."""
        with self._lock:
            joined, self._joined = self._joined, {}
        for each in joined.values():
            each.native.destroy()


def open_library(current_gpu: Callable[[], int], allocate: Callable[[int], DeviceMemory]) -> NcclLibrary | None:
    """Return NCCL for the GPUs of this process, or None if NCCL is not installed."""
    try:
        with warnings.catch_warnings():
            # CuPy warns if NCCL is not installed; a run that requests NCCL raises an error instead.
            warnings.simplefilter("ignore", UserWarning)
            from cupy.cuda import nccl
    except ImportError:
        return None
    return NcclLibrary(nccl, current_gpu, allocate) if nccl.available else None


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernel of sums over GPUs, or an empty list if NCCL is not available."""
    library: NcclLibrary | None = runtime.library(LIBRARY)
    if library is None:
        return []
    return [Kernel("collective_sum", "gpu", LIBRARY, 0, FLOATS, arrange_in_place, partial(_bind, library))]


def _bind(library: NcclLibrary, attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
    """Return a call that no graph captures: NCCL requires all GPUs to capture and replay the same sums together.

    This cannot be guaranteed: if memory is planned again for one GPU, only that GPU captures new graphs.
    """
    (part,), (total,) = buffers.inputs, buffers.outputs
    communicator = library.communicator()
    rank, size = attributes["rank"], attributes["size"]
    if (rank, size) != (communicator.rank, communicator.size):
        raise RuntimeError(
            f"a sum as GPU {rank} of {size}: this GPU joined as {communicator.rank} of {communicator.size}"
        )
    count = prod(part.spec.shape)

    def enqueue(stream: Stream) -> None:
        if count:
            communicator.enqueue(stream, part.address, total.address, count, part.spec.dtype)

    return StreamCall(enqueue, communicator, turn=communicator.turn, captured=False)
