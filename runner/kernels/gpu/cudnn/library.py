"""cuDNN on one card: a plan for every convolution, made once, and how it is put on a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.kernels.gpu.cudnn.description import Convolution, Role
from runner.kernels.gpu.cudnn.graphs import build
from runner.kernels.gpu.runtime import Stream

WORKSPACE_LIMIT = 1 << 30
"""Bytes. Convolutions whose windows are laid out in memory want hundreds of millions."""


class CudnnUnavailable(Exception):
    """cuDNN cannot be used here; the text says why and what to do."""


class Plan(Protocol):
    """How one convolution is computed. workspace_bytes: memory that an execution may spoil."""

    @property
    def workspace_bytes(self) -> int: ...

    def enqueue(self, stream: Stream, addresses: Mapping[Role, int], workspace: int) -> None:
        """Put it on a stream, between tensors at these addresses."""
        ...


class Planner(Protocol):
    """What the kernels ask of cuDNN."""

    def plan(self, convolution: Convolution) -> Plan | None:
        """The plan of a convolution, or None where cuDNN has none for it."""
        ...


@dataclass(frozen=True)
class BuiltPlan:
    """A plan of cuDNN for one card. name: cuDNN's, an engine and its settings."""

    library: CudnnLibrary = field(repr=False)
    graph: Any = field(repr=False)
    name: str
    workspace_bytes: int

    def enqueue(self, stream: Stream, addresses: Mapping[Role, int], workspace: int) -> None:
        """Put it on a stream; the stream and what it is told belong together, so one thread at a time."""
        with self.library.on(stream) as handle:
            self.graph.execute({int(role): address for role, address in addresses.items()}, workspace, handle=handle)


class CudnnLibrary:
    """The cuDNN of one card.

    cudnn: the module of the front end. card: what a graph is for, ``{"handle": ...}`` on a card or
    ``{"device_property": ...}`` to plan for one that is not there. tf32: whether factors of float32 products may be
    rounded to 10 bits of mantissa. use_card: makes the card that of the calling thread.
    """

    def __init__(
        self, cudnn: Any, card: Mapping[str, Any], *, tf32: bool, use_card: Callable[[], None] = lambda: None
    ) -> None:
        self._cudnn = cudnn
        self._card = dict(card)
        self._tf32 = tf32
        self._use_card = use_card
        self._plans: dict[Convolution, BuiltPlan | None] = {}
        self._lock = threading.Lock()

    @property
    def version(self) -> str:
        """Of cuDNN itself, such as "9.28.0"."""
        return str(self._cudnn.backend_version_string())

    def plan(self, convolution: Convolution) -> BuiltPlan | None:
        """The plan that cuDNN's heuristics put first among those that are allowed, or None where there is none.

        Allowed are those that give the same bits every time, sum in at least float32, take at most
        ``WORKSPACE_LIMIT`` and, for float32 without TF32, do not round factors. Where cuDNN has to compile one, this
        takes about a second.
        """
        with self._lock:
            if convolution not in self._plans:
                self._use_card()
                self._plans[convolution] = self._planned(convolution)
            return self._plans[convolution]

    def _planned(self, convolution: Convolution) -> BuiltPlan | None:
        graph = build(self._cudnn, convolution, **self._card)
        modes, refused = self._cudnn.heur_mode, self._cudnn.cudnnGraphNotSupportedError
        graph.validate()
        graph.build_operation_graph()
        try:
            graph.create_execution_plans([modes.A, modes.FALLBACK])
        except refused:
            return None
        graph.deselect_numeric_notes(self._forbidden(convolution))
        for index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(index)
            except refused:
                continue
            workspace = int(graph.get_workspace_size_plan_at_index(index))
            if workspace <= WORKSPACE_LIMIT:
                return BuiltPlan(self, graph, graph.get_plan_name_at_index(index), workspace)
        return None

    def _forbidden(self, convolution: Convolution) -> list[Any]:
        notes = self._cudnn.numerical_note
        always = [notes.NONDETERMINISTIC, notes.REDUCED_PRECISION_REDUCTION]
        exact = convolution.dtype == "float32" and not self._tf32
        return [*always, notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS] if exact else always

    @contextmanager
    def on(self, stream: Stream) -> Iterator[Any]:
        """The handle, putting what it is told on a stream; for one thread at a time."""
        handle = self._card["handle"]
        with self._lock:
            self._use_card()
            self._cudnn.set_stream(handle=handle, stream=stream.handle)
            yield handle


def open_library(*, tf32: bool, use_card: Callable[[], None]) -> CudnnLibrary:
    """The cuDNN of the card that ``use_card`` makes current; raises CudnnUnavailable where there is none."""
    try:
        import cudnn
    except ImportError as error:
        raise CudnnUnavailable(f"cuDNN's front end cannot be imported ({error}): pip install '.[gpu]'") from error
    use_card()
    try:
        handle = cudnn.create_handle()
    except RuntimeError as error:
        raise CudnnUnavailable(f"cuDNN cannot be opened: {error}; see runner doctor") from error
    return CudnnLibrary(cudnn, {"handle": handle}, tf32=tf32, use_card=use_card)
