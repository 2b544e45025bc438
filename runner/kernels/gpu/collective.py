"""Sums over GPUs, computed by a collective library."""

from functools import partial
from math import prod
from typing import Protocol

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Offers, Specs, plain
from runner.kernels.gpu.calls import StreamCall
from runner.kernels.gpu.runtime import DeviceMemory, Runtime, Stream

LIBRARY = "nccl"


class Communicator(Protocol):
    """The communicator of one GPU.

    turn: memory that every sum counts as written, so that sums keep their order.
    """

    rank: int
    size: int
    turn: DeviceMemory

    def enqueue(self, stream: Stream, source: int, target: int, count: int, dtype: str) -> None:
        """Enqueue the sum of ``count`` elements; source and target may be equal. All other GPUs must enqueue it too."""
        ...


class Communicators(Protocol):
    """The communicators of a process's GPUs."""

    def communicator(self) -> Communicator:
        """Return that of this thread's GPU; raises RuntimeError if the GPU has not joined a communicator."""
        ...


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernel of sums over GPUs, or none if the library is not available."""
    library: Communicators | None = runtime.library(LIBRARY)
    if library is None:
        return []
    return [Kernel("collective_sum", "gpu", LIBRARY, 0, FLOATS, _arrange, partial(_bind, library))]


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    return Arrangement((plain(inputs[0]),), (plain(outputs[0]),), in_place=((0, 0),))


def _bind(library: Communicators, attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
    """The call is never captured: NCCL requires that all GPUs capture and replay the same sums at the same time.

    A GPU whose memory is planned again restarts its graphs, independently of the others.
    """
    (part,), (total,) = buffers.inputs, buffers.outputs
    communicator = library.communicator()
    asked = (attributes["rank"], attributes["size"])
    if asked != (communicator.rank, communicator.size):
        raise RuntimeError(
            f"a sum as GPU {asked[0]} of {asked[1]}: this GPU joined as {communicator.rank} of {communicator.size}"
        )
    count = prod(part.spec.shape)

    def enqueue(stream: Stream) -> None:
        if count:
            communicator.enqueue(stream, part.address, total.address, count, part.spec.dtype)

    return StreamCall(enqueue, communicator, turn=communicator.turn, captured=False)
