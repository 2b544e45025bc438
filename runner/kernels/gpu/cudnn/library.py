"""cuDNN on the GPUs of a process: one plan per convolution, and its execution on a stream."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from runner.kernels.gpu.cudnn.graphs import Convolution, Role, build
from runner.kernels.gpu.runtime import DeviceMemory, Stream
from runner.kernels.memory import numpy_dtype

WORKSPACE_LIMIT = 1 << 30
"""The workspace limit in bytes. A plan that copies the windows of a convolution needs hundreds of megabytes."""

COMPARED, COMPILED = 8, 2
"""The maximum number of plans compared per convolution, and the maximum number of plans compiled at run time."""

Target = Mapping[str, Any]
"""The target of a graph: the ``handle`` of a GPU or, to plan without a GPU, a ``device_property``."""


class Bench(Protocol):
    """The memory and the timer of a GPU, for comparing plans."""

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Allocate memory of this thread's GPU. Raises MemoryError if there is not enough."""

    def seconds(self, work: Callable[[Stream], None]) -> float:
        """Return the seconds that the GPU takes for ``work``, after a warm-up."""


@dataclass(frozen=True)
class BuiltPlan:
    """A cuDNN plan for one GPU. name: cuDNN's engine and its settings. number: index of the plan in the graph."""

    name: str
    workspace_bytes: int
    number: int
    graph: Any = field(repr=False)
    library: "CudnnLibrary" = field(repr=False)
    target: Target = field(repr=False)

    def enqueue(self, stream: Stream, addresses: Mapping[Role, int], workspace: int) -> None:
        """Enqueue an execution of the plan on tensors at these addresses."""
        self.library.execute(self, stream, {int(role): address for role, address in addresses.items()}, workspace)


class CudnnLibrary:
    """cuDNN for the GPUs of a process.

    cudnn: the module of the front end. open_target: returns the target of graphs for this thread's GPU; called once per
    GPU. current_gpu: returns the number of this thread's GPU. tf32: whether factors of float32 products may be rounded
    to 10 mantissa bits. bench: times the plans; if None, the first plan of cuDNN's heuristics is used. lock: a
    reentrant lock that is held during calls with a handle.
    """

    def __init__(
        self,
        cudnn: Any,
        open_target: Callable[[], Target],
        current_gpu: Callable[[], int],
        *,
        tf32: bool,
        bench: Bench | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._cudnn = cudnn
        self._open_target = open_target
        self._current_gpu = current_gpu
        self._tf32 = tf32
        self._bench = bench
        self._targets: dict[int, Target] = {}
        self._plans: dict[tuple[int, Convolution], BuiltPlan | None] = {}
        self._numbers: dict[Convolution, int] = {}
        # The lock is reentrant, because plans are executed for comparison while the lock is held.
        self._lock = lock or threading.RLock()

    def plan(self, convolution: Convolution, room: int = WORKSPACE_LIMIT) -> BuiltPlan | None:
        """Return the first of the allowed plans (with a bench, the fastest), or None if no plan is allowed.

        Allowed plans are deterministic, sum in at least float32, need at most ``room`` bytes of workspace and, for
        float32 without TF32, do not round factors.
        """
        gpu = self._current_gpu()
        with self._lock:
            if (gpu, convolution) not in self._plans:
                if gpu not in self._targets:
                    self._targets[gpu] = self._open_target()
                self._plans[gpu, convolution] = self._planned(convolution, self._targets[gpu], room)
            found = self._plans[gpu, convolution]
        # A plan that was built for more room would write past the end of the workspace.
        return found if found is None or found.workspace_bytes <= room else None

    def execute(self, plan: BuiltPlan, stream: Stream, addresses: Mapping[int, int], workspace: int) -> None:
        """Enqueue a plan. A lock keeps other threads from using the handle between the two calls."""
        handle = plan.target["handle"]
        with self._lock:
            self._cudnn.set_stream(handle=handle, stream=stream.handle)
            plan.graph.execute_plan_at_index(addresses, workspace, plan.number, handle)

    def _planned(self, convolution: Convolution, target: Target, room: int) -> BuiltPlan | None:
        graph = build(self._cudnn, convolution, target)
        modes = self._cudnn.heur_mode
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([modes.A, modes.FALLBACK])
        except self._cudnn.cudnnGraphNotSupportedError:
            return None
        graph.deselect_numeric_notes(self._forbidden(convolution))
        offered = range(graph.get_execution_plan_count())
        known = self._numbers.get(convolution)
        # All GPUs use the plan of the first GPU: the GPUs are alike, and scratch memory is arranged for one plan.
        plans = self._allowed(graph, target, offered if known is None else (known,), room)
        found = next(plans, None) if self._bench is None else fastest(self._bench, convolution, islice(plans, COMPARED))
        if found is not None:
            self._numbers[convolution] = found.number
        return found

    def _allowed(self, graph: Any, target: Target, numbers: Iterable[int], room: int) -> Iterator[BuiltPlan]:
        """Yield the plans with these numbers that can be built and need at most ``room`` bytes."""
        compiled = 0
        for number in numbers:
            notes = graph.get_behavior_notes_for_plan_at_index(number)
            is_compiled = self._cudnn.behavior_note.RUNTIME_COMPILATION in notes
            if is_compiled and compiled == COMPILED:
                continue
            try:
                graph.build_plan_at_index(number)
            except self._cudnn.cudnnGraphNotSupportedError:
                continue
            workspace = int(graph.get_workspace_size_plan_at_index(number))
            if workspace <= room:
                compiled += is_compiled
                yield BuiltPlan(graph.get_plan_name_at_index(number), workspace, number, graph, self, target)

    def _forbidden(self, convolution: Convolution) -> list[Any]:
        notes = self._cudnn.numerical_note
        always = [notes.NONDETERMINISTIC, notes.REDUCED_PRECISION_REDUCTION]
        exact = convolution.dtype == "float32" and not self._tf32
        return [*always, notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS] if exact else always


def fastest(bench: Bench, convolution: Convolution, plans: Iterable[BuiltPlan]) -> BuiltPlan | None:
    """Return the plan that takes the least time, or None if there is no plan. Allocates memory for the measurement.

    Different plans add in different orders, and the fastest plan may differ between runs. For results that are equal
    bit for bit in every run, use the first plan of cuDNN's heuristics instead.
    """
    several = list(plans)
    if len(several) < 2:
        return several[0] if several else None
    itemsize = numpy_dtype(convolution.dtype).itemsize
    tensors = {role: bench.allocate(math.prod(shape) * itemsize) for role, shape in convolution.shapes.items()}
    addresses = {role: memory.address for role, memory in tensors.items()}
    workspace = bench.allocate(max(plan.workspace_bytes for plan in several))

    def seconds(plan: BuiltPlan) -> float:
        return bench.seconds(lambda stream: plan.enqueue(stream, addresses, workspace.address))

    return min(several, key=seconds)


def open_library(
    current_gpu: Callable[[], int],
    *,
    tf32: bool,
    bench: Bench | None = None,
    lock: AbstractContextManager[object] | None = None,
) -> CudnnLibrary | None:
    """Return cuDNN for the GPUs of this process, or None if cuDNN or its front end is not installed."""
    try:
        import cudnn

        cudnn.backend_version()
    except (ImportError, RuntimeError):
        # Without cuDNN the front end can be imported, but its functions fail.
        return None

    def target() -> Target:
        return {"handle": cudnn.create_handle()}

    return CudnnLibrary(cudnn, target, current_gpu, tf32=tf32, bench=bench, lock=lock)
