"""Sums over GPUs: each gives its part to a library, which gives all of them the sum."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Protocol

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Offers, Specs, plain
from runner.kernels.gpu.calls import StreamCall
from runner.kernels.gpu.runtime import DeviceMemory, Runtime, Stream

LIBRARY = "nccl"


class Communicator(Protocol):
    """What the kernel asks of the GPU's place among those that sum.

    turn: memory that stands for it; whoever uses it counts as writing there, so that sums keep their order.
    """

    rank: int
    size: int
    turn: DeviceMemory

    def enqueue(self, stream: Stream, source: int, target: int, count: int, dtype: str) -> None:
        """Put the sum of ``count`` elements on a stream; source and target may be the same. Others must do so too."""
        ...


class Communicators(Protocol):
    """The communicators of a process's GPUs."""

    def communicator(self) -> Communicator:
        """Of the GPU that the thread uses; raises RuntimeError where it has joined no others."""
        ...


def kernels(runtime: Runtime) -> list[Kernel]:
    """The kernel of a sum over GPUs, where there is a library for it."""
    library: Communicators | None = runtime.library(LIBRARY)
    if library is None:
        return []
    return [Kernel("collective_sum", "gpu", LIBRARY, 0, FLOATS, _arrange, partial(_bind, library))]


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    return Arrangement((plain(inputs[0]),), (plain(outputs[0]),), in_place=((0, 0),))


def _bind(library: Communicators, attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
    """Never part of a captured graph: NCCL wants all GPUs to capture, and to replay, the same at the same time.

    A GPU whose memory is planned anew begins its graphs again, whatever the others do.
    """
    (part,), (total,) = buffers.inputs, buffers.outputs
    communicator = library.communicator()
    asked = (attributes["rank"], attributes["size"])
    if asked != (communicator.rank, communicator.size):
        raise RuntimeError(
            f"a sum as GPU {asked[0]} of {asked[1]}, and this GPU joined as {communicator.rank} of {communicator.size}"
        )
    count = prod(part.spec.shape)

    def enqueue(stream: Stream) -> None:
        if count:
            communicator.enqueue(stream, part.address, total.address, count, part.spec.dtype)

    return StreamCall(enqueue, communicator, turn=communicator.turn, captured=False)
