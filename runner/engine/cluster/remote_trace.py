"""An active trace of worker processes; the master requests it and assembles the timeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from runner.engine.cluster.remote_plan import RemotePlan
from runner.engine.cluster.transport.documents import decode_document, encode_document
from runner.engine.cluster.transport.messages import Done, StartTrace, StopTrace, Traced
from runner.engine.cluster.transport.names import MASTER
from runner.engine.cluster.worker_group import WorkerGroup
from runner.engine.run.recording import from_document
from runner.engine.run.timeline import ClientRuns, RecordedPlan, Span, Timeline, spans_of
from runner.errors import SecurityError


class RemoteTrace:
    """The trace of some plans, recorded from its creation on. runs: client runs that the session records."""

    def __init__(self, group: WorkerGroup, plans: Mapping[str, RemotePlan]) -> None:
        """plans: by client. Only workers that participate in one of them record."""
        self.runs = ClientRuns(MASTER, plans)
        self._group = group
        self._recorded: dict[str, list[RecordedPlan]] = {}
        names: dict[str, list[str]] = {}
        for client, plan in plans.items():
            for worker, assignment in plan.assignments.items():
                names.setdefault(worker, []).append(plan.name)
                recorded = RecordedPlan(client, assignment.plan, assignment.part.graph)
                self._recorded.setdefault(worker, []).append(recorded)
        for worker, plan_names in names.items():
            group.send(worker, StartTrace(), encode_document(plan_names))

    def stop(self, ended: deque[tuple[str, Done]]) -> Timeline:
        """Collect the spans of all workers. ended: receives the Done messages that arrive meanwhile."""
        for worker in self._recorded:
            self._group.send(worker, StopTrace())
        spans: dict[str, list[Span]] = {}
        while len(spans) < len(self._recorded):
            worker, answer, frames = self._group.next(Done, Traced)
            if isinstance(answer, Done):
                ended.append((worker, answer))
            elif worker in spans or worker not in self._recorded:
                raise SecurityError(f"{worker} sent spans that were not requested")
            else:
                spans[worker] = spans_of(
                    worker, self._recorded[worker], from_document(decode_document(frames[0]), worker)
                )
        ordered = [span for worker in self._recorded for span in spans[worker]]
        return Timeline(tuple(ordered), tuple(self.runs.ended))
