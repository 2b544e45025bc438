"""The fastest of several plans of a convolution, found out on the GPU.

Different plans add in different orders, and which is the fastest may differ from run to run: who wants the same bits
in every run takes the plan that cuDNN's heuristics put first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from runner.kernels.gpu.cudnn.graphs import Convolution, Role
from runner.kernels.gpu.runtime import DeviceMemory, Stream
from runner.kernels.memory import numpy_dtype


class Comparable(Protocol):
    """A plan: see :class:`~runner.kernels.gpu.cudnn.library.Plan`."""

    @property
    def workspace_bytes(self) -> int: ...

    def enqueue(self, stream: Stream, addresses: Mapping[Role, int], workspace: int) -> None: ...


class Bench(Protocol):
    """Memory of a GPU, and its clock."""

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Memory of the GPU that the thread uses. Raises MemoryError where there is none."""
        ...

    def seconds(self, work: Callable[[Stream], None]) -> float:
        """How long the GPU takes for what ``work`` puts on a stream, once it has been done before."""
        ...


Some = TypeVar("Some", bound=Comparable)


def fastest(bench: Bench, convolution: Convolution, plans: Iterable[Some]) -> Some | None:
    """The plan that takes the least time, the first of equals; None of none. Memory is lent for the time of it."""
    several = list(plans)
    if len(several) < 2:
        return several[0] if several else None
    itemsize = numpy_dtype(convolution.dtype).itemsize
    tensors = {role: bench.allocate(math.prod(shape) * itemsize) for role, shape in convolution.shapes.items()}
    addresses = {role: memory.address for role, memory in tensors.items()}
    workspace = bench.allocate(max(plan.workspace_bytes for plan in several))

    def seconds(plan: Some) -> float:
        return bench.seconds(lambda stream: plan.enqueue(stream, addresses, workspace.address))

    return min(several, key=seconds)
