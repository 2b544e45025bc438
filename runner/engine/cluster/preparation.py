"""The preparation of a spare process: the work of a replacement that does not depend on the worker that it replaces."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.engine.cluster.assignment import Assignment
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.encoding import decode_document
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.worker import SourceMaker, close_source
from runner.engine.cluster.worker_setup import WorkerSetup
from runner.engine.compile.program import InputSource
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
    """The input source of a spare process, made in advance, and kernels that were compiled in advance.

    The master sends the setup of the run and, for each plan, the assignment of one worker. The plans of the other
    workers usually have the same kernels.
    """

    make_source: SourceMaker
    registry: Registry

    def __post_init__(self) -> None:
        self._source: InputSource | None = None

    def handle(self, received: Received) -> None:
        """Handle a Setup or Load message. Raises SecurityError for any other message and for a malformed document."""
        match received.message:
            case messages.Setup():
                setup = WorkerSetup.from_document(decode_document(received.frames[0]))
                if setup.source is not None:
                    self.close()
                    self._source = self.make_source(setup.source)
                    log.info("the input source is ready")
            case messages.Load(plan=plan):
                self._bind(Assignment.from_document(decode_document(received.frames[0]), self.registry))
                log.info("the kernels of the plan %s are ready", plan)
            case other:
                raise SecurityError(f"{other.kind!r} from {received.source} to a spare process: unexpected message")

    def _bind(self, assignment: Assignment) -> None:
        """Bind a plan to memory that is then freed, so that libraries keep the compiled kernels."""
        platform = HostPlatform(self.registry.join)
        wires = wires_of(platform, LocalRendezvous())
        DeviceExecutor(assignment.plan, self.registry, VariableStore(platform), Arena(platform), wires)

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
