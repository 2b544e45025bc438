"""A fake of CuPy's NCCL module for emulated GPUs: a sum runs when all ranks have reached it.

Signatures are as in CuPy 14.2, ``cupy.cuda.nccl``; numbers of types are as in nccl.h.
"""

import ctypes
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import ml_dtypes
import numpy as np

from runner.engine.cluster.worker_setup import ID_BYTES
from runner.kernels.gpu.collective import NcclLibrary
from tests.kernels.gpu.emulation import PATIENCE_S, WORKING, EmulatedRuntime, EmulatedStream

_TYPES: dict[int, Any] = {2: np.int32, 4: np.int64, 7: np.float32, 8: np.float64, 9: ml_dtypes.bfloat16}


class NcclError(RuntimeError):
    """A fake of CuPy's error of this name."""

    def __init__(self, status: int) -> None:
        super().__init__(f"ncclError {status}")
        self.status = status


@dataclass(frozen=True)
class _Call:
    """The call with which one rank takes part in a sum."""

    stream: EmulatedStream
    position: int
    source: int
    target: int
    count: int
    datatype: int


@dataclass
class _World:
    """The ranks of a communicator.

    begun: rank -> number of sums that it began. sums: index of a sum -> rank -> call. done: indices of finished sums.
    """

    size: int
    ranks: set[int] = field(default_factory=set)
    begun: dict[int, int] = field(default_factory=dict)
    sums: dict[int, dict[int, _Call]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)


class FakeNccl:
    """A fake of the module.

    background: status of an asynchronous failure, or 0. refuses: status with which joins fail, or 0. log: rank, number
    of elements and stream of each sum.
    """

    available = True
    NcclError = NcclError

    def __init__(self, runtime: EmulatedRuntime) -> None:
        self.runtime = runtime
        self.worlds: dict[bytes, _World] = {}
        self.background = 0
        self.refuses = 0
        self.log: list[tuple[int, int, int]] = []

    def get_unique_id(self) -> bytes:
        if self.refuses:
            raise NcclError(self.refuses)
        return len(self.worlds).to_bytes(ID_BYTES, "big")

    def NcclCommunicator(self, ndev: int, commId: bytes, rank: int) -> "FakeCommunicator":  # noqa: N802, N803
        assert type(commId) is bytes
        assert len(commId) == ID_BYTES
        if self.refuses:
            raise NcclError(self.refuses)
        with WORKING:
            world = self.worlds.setdefault(commId, _World(ndev))
            assert world.size == ndev
            assert 0 <= rank < ndev
            assert rank not in world.ranks, f"rank {rank} twice"
            world.ranks.add(rank)
        return FakeCommunicator(self, world, rank)


@dataclass
class FakeCommunicator:
    """The communicator of one rank."""

    nccl: FakeNccl
    world: _World
    rank: int
    destroyed: bool = False
    aborted: bool = False

    def check_async_error(self) -> None:
        if self.aborted:
            raise NcclError(4)
        if self.nccl.background:
            raise NcclError(self.nccl.background)

    def destroy(self) -> None:
        self.destroyed = True

    def abort(self) -> None:
        self.aborted = True

    def allReduce(  # noqa: N802
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        assert all(type(each) is int for each in (sendbuf, recvbuf, count, datatype, op, stream))
        assert op == 0, "ncclSum"
        assert not self.destroyed
        own = self.nccl.runtime.streams[stream]
        assert own.capturing is None, "sums must not be captured: all GPUs would have to capture them together"
        with WORKING:
            number = self.world.begun.get(self.rank, 0)
            self.world.begun[self.rank] = number + 1
            call = _Call(own, len(own.queue), sendbuf, recvbuf, count, datatype)
            self.world.sums.setdefault(number, {})[self.rank] = call
            self.nccl.log.append((self.rank, count, stream))
            own.put(partial(self._wait_and_sum, number))
            WORKING.notify_all()

    def _wait_and_sum(self, number: int) -> None:
        """Compute the sum for all ranks once all have enqueued it and their earlier work is done."""
        world, calls = self.world, self.world.sums[number]
        complete = WORKING.wait_for(lambda: len(calls) == world.size or number in world.done, PATIENCE_S)
        assert complete, f"sum {number}: only ranks {sorted(calls)} called it"
        for call in calls.values():
            if number not in world.done:  # while a stream is drained, another rank may compute the sum
                call.stream.drain(call.position)
        if number not in world.done:
            world.done.add(number)
            _sum([calls[rank] for rank in range(world.size)])


def _sum(calls: list[_Call]) -> None:
    """Add the inputs in rank order; the real NCCL does not guarantee an order."""
    assert len({(call.count, call.datatype) for call in calls}) == 1, "ranks must agree on the count and the type"
    parts = [_at(call.source, call).copy() for call in calls]
    total = reduce(np.add, parts)
    for call in calls:
        _at(call.target, call)[:] = total


def _at(address: int, call: _Call) -> Any:
    dtype = np.dtype(_TYPES[call.datatype])
    memory = (ctypes.c_char * (call.count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


def with_nccl(runtime: EmulatedRuntime) -> FakeNccl:
    """Add the fake library to emulated GPUs, without communicators."""
    nccl = FakeNccl(runtime)
    runtime.libraries["nccl"] = NcclLibrary(nccl, lambda: runtime.gpu, runtime.allocate)
    return nccl


def joined(runtime: EmulatedRuntime, gpus: int) -> FakeNccl:
    """Add the fake library to emulated GPUs, and let the first ``gpus`` GPUs join in order."""
    nccl = with_nccl(runtime)
    library: NcclLibrary = runtime.library("nccl")
    unique_id = library.unique_id()
    for gpu in range(gpus):
        runtime.use(gpu)
        library.join(unique_id, gpu, gpus)
    return nccl
