"""NCCL through CuPy: one communicator for each GPU of a process, which are joined when a run is set up."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner.kernels.gpu.runtime import DeviceMemory, Stream

ID_BYTES = 128
_TURN_BYTES = 256
_SUM = 0
_TYPES = {"int32": 2, "int64": 4, "float32": 7, "float64": 8, "bfloat16": 9}
"""ncclRedOp_t and ncclDataType_t, as nccl.h has them."""


@dataclass(frozen=True)
class NcclCommunicator:
    """See :class:`~runner.kernels.gpu.collective.Communicator`. native: CuPy's."""

    native: Any
    rank: int
    size: int
    turn: DeviceMemory

    def enqueue(self, stream: Stream, source: int, target: int, count: int, dtype: str) -> None:
        """Raises RuntimeError for what NCCL refuses, and for what failed since it was last asked for something.

        After that nothing more can be summed. What is under way is given up: it would wait for others for ever, and
        whoever waits for the GPU with it.
        """
        try:
            self.native.check_async_error()
            self.native.allReduce(source, target, count, _TYPES[dtype], _SUM, stream.handle)
        except RuntimeError as error:
            self.native.abort()
            raise RuntimeError(f"the sum of {count} {dtype} as GPU {self.rank} of {self.size}: {error}") from error


class NcclLibrary:
    """NCCL for the GPUs of a process.

    nccl: CuPy's module of it. current_gpu: the number of the GPU that the thread uses. allocate: memory of it.
    """

    def __init__(self, nccl: Any, current_gpu: Callable[[], int], allocate: Callable[[int], DeviceMemory]) -> None:
        self._nccl = nccl
        self._current_gpu = current_gpu
        self._allocate = allocate
        self._joined: dict[int, NcclCommunicator] = {}
        self._lock = threading.Lock()

    def unique_id(self) -> bytes:
        """128 bytes by which processes find each other; who is asked waits for them, so it has to live until all have.

        Raises RuntimeError where NCCL finds no network to wait on.
        """
        try:
            return bytes(self._nccl.get_unique_id())
        except RuntimeError as error:
            raise RuntimeError(f"NCCL finds no way for GPUs to meet: {error}") from error

    def join(self, unique_id: bytes, rank: int, size: int) -> None:
        """Make the GPU that the thread uses number ``rank`` of ``size``; returns when all have joined.

        Raises RuntimeError where NCCL cannot, and where the GPU has joined before.
        """
        gpu = self._current_gpu()
        if gpu in self._joined:
            raise RuntimeError(f"GPU {gpu} is to join {size} GPUs, and has joined {self._joined[gpu].size} before")
        try:
            native = self._nccl.NcclCommunicator(size, unique_id, rank)
        except RuntimeError as error:
            raise RuntimeError(f"GPU {gpu} cannot join {size} GPUs as number {rank}: {error}") from error
        made = NcclCommunicator(native, rank, size, self._allocate(_TURN_BYTES))
        with self._lock:
            self._joined[gpu] = made

    def communicator(self) -> NcclCommunicator:
        """Of the GPU that the thread uses; raises RuntimeError where it has joined no others."""
        gpu = self._current_gpu()
        if gpu not in self._joined:
            raise RuntimeError(f"a sum over GPUs, and GPU {gpu} has joined no others")
        return self._joined[gpu]

    def leave(self) -> None:
        """Give up all communicators; all processes do, when nothing is under way any more."""
        with self._lock:
            joined, self._joined = self._joined, {}
        for each in joined.values():
            each.native.destroy()


def open_library(current_gpu: Callable[[], int], allocate: Callable[[int], DeviceMemory]) -> NcclLibrary | None:
    """NCCL for the GPUs of this process, or None where it is not installed."""
    try:
        with warnings.catch_warnings():
            # Where it is not installed CuPy warns; who wants it is told why it is not used.
            warnings.simplefilter("ignore", UserWarning)
            from cupy.cuda import nccl
    except ImportError:
        return None
    return NcclLibrary(nccl, current_gpu, allocate) if nccl.available else None
