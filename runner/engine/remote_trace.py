"""A trace that worker processes record, as the master asks for it and puts it together."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from runner.engine.recording import from_document
from runner.engine.remote_plan import RemotePlan
from runner.engine.timeline import ClientRuns, RecordedPlan, Span, Timeline, spans_of
from runner.engine.transport.documents import decode_document, encode_document
from runner.engine.transport.messages import Done, StartTrace, StopTrace, Traced
from runner.engine.transport.names import MASTER
from runner.engine.worker_group import WorkerGroup
from runner.errors import SecurityError


class RemoteTrace:
    """What workers record of some plans, from its making on. runs: of their clients, noted by the session."""

    def __init__(self, group: WorkerGroup, plans: Mapping[str, RemotePlan]) -> None:
        """plans: by client; only workers that take part in one are told."""
        self.runs = ClientRuns(MASTER, plans)
        self._group = group
        self._recorded: dict[str, list[RecordedPlan]] = {}
        names: dict[str, list[str]] = {}
        for client, plan in plans.items():
            for worker, assignment in plan.assignments.items():
                names.setdefault(worker, []).append(plan.name)
                own = RecordedPlan(client, assignment.plan, assignment.part.graph)
                self._recorded.setdefault(worker, []).append(own)
        for worker, own_names in names.items():
            group.tell(worker, StartTrace(), encode_document(own_names))

    def stop(self, ended: deque[tuple[str, Done]]) -> Timeline:
        """Have the workers hand over what they recorded. ended: where endings are kept that come meanwhile."""
        for worker in self._recorded:
            self._group.tell(worker, StopTrace())
        spans: dict[str, list[Span]] = {}
        while len(spans) < len(self._recorded):
            worker, answer, frames = self._group.next(Done, Traced)
            if isinstance(answer, Done):
                ended.append((worker, answer))
            elif worker in spans or worker not in self._recorded:
                raise SecurityError(f"{worker} handed over spans that it was not asked for")
            else:
                spans[worker] = spans_of(
                    worker, self._recorded[worker], from_document(decode_document(frames[0]), worker)
                )
        ordered = [span for worker in self._recorded for span in spans[worker]]
        return Timeline(tuple(ordered), tuple(self.runs.noted))
