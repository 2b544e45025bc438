"""The preparation of a spare process: the work of a replacement that does not depend on the worker that it replaces."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.engine.cluster.assignment import Assignment
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.encoding import decode_document
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.worker import SourceMaker, close_source
from runner.engine.cluster.worker_setup import WorkerSetup
from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.planner import Part
from runner.engine.compile.program import InputSource
from runner.engine.graph import ops
from runner.engine.graph.device import worker_device
from runner.engine.graph.graph import Graph
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.rendezvous import LocalRendezvous
from runner.engine.run.storage import Arena, VariableStore
from runner.engine.run.wires import wires_of
from runner.errors import SecurityError
from runner.kernels.platform import HostPlatform
from runner.kernels.registry import Registry

log = logging.getLogger(__name__)


@dataclass
class Preparation:
    """The input source of a spare process, decoded assignments and compiled kernels, all made in advance.

    The master sends the setup of the run, the assignments of all workers for the plans that a recovery needs, and the
    assignment of one worker for each other plan. Workers usually have the same kernels, so only the first assignment of
    each plan is bound.
    """

    make_source: SourceMaker
    registry: Registry

    def __post_init__(self) -> None:
        self._source: InputSource | None = None
        self._bound: set[str] = set()
        self.assignments: dict[bytes, Assignment] = {}  # encoded document -> decoded assignment

    def handle(self, received: Received) -> None:
        """Handle a Setup or Load message. Raises SecurityError for any other message and for a malformed document."""
        match received.message:
            case messages.Setup():
                self._multiply()
                setup = WorkerSetup.from_document(decode_document(received.frames[0]))
                if setup.source is not None:
                    self.close()
                    self._source = self.make_source(setup.source)
                    log.info("the input source is ready")
            case messages.Load(plan=plan):
                assignment = Assignment.from_document(decode_document(received.frames[0]), self.registry)
                self.assignments[bytes(received.frames[0])] = assignment
                if plan not in self._bound:
                    self._bound.add(plan)
                    self._bind(assignment.plan)
                    log.info("the kernels of the plan %s are ready", plan)
            case other:
                raise SecurityError(f"{other.kind!r} from {received.source} to a spare process: unexpected message")

    def _multiply(self) -> None:
        """Compute a small matrix product, because oneDNN generates code when it computes the first one."""
        graph, device = Graph(), worker_device(0)
        with graph.device(device):
            matrix = ops.placeholder(graph, (8, 8), "float32", name="matrix")
            product = ops.matmul(graph, matrix, matrix)
        plan = Part(graph, (product,), {matrix: matrix}).plan(device, self.registry, {})
        self._bind(plan).run(0, {matrix: np.ones((8, 8), np.float32)})

    def _bind(self, plan: DevicePlan) -> DeviceExecutor:
        """Bind a plan to new memory; libraries keep the compiled kernels after the memory is freed."""
        platform = HostPlatform(self.registry.join)
        wires = wires_of(platform, LocalRendezvous())
        return DeviceExecutor(plan, self.registry, VariableStore(platform), Arena(platform), wires)

    def source(self, description: Mapping[str, Any]) -> InputSource:
        """Return the prepared source, or make one if none is left; the caller must close the source.

        All processes of a run have the same description.
        """
        source, self._source = self._source, None
        return self.make_source(description) if source is None else source

    def close(self) -> None:
        """Close the prepared source, unless :meth:`source` has returned it."""
        source, self._source = self._source, None
        close_source(source)
