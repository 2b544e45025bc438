"""The fastest of several plans of a convolution, measured on the GPU.

Different plans add in different orders, and the fastest may differ between runs. For equal bits in every run, use the
first plan of cuDNN's heuristics instead.
"""

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
    """Memory and clock of a GPU."""

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Allocate memory of this thread's GPU. Raises MemoryError if there is not enough."""
        ...

    def seconds(self, work: Callable[[Stream], None]) -> float:
        """Return the time that the GPU takes for ``work``, after a warm-up."""
        ...


Some = TypeVar("Some", bound=Comparable)


def fastest(bench: Bench, convolution: Convolution, plans: Iterable[Some]) -> Some | None:
    """Return the plan that takes the least time, or None without plans. Allocates memory for the measurement."""
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
