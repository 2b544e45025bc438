"""A trace of the devices of one process while it is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.engine.executor import DeviceExecutor
from runner.engine.recording import Recorder
from runner.engine.timeline import ClientRuns, RecordedPlan, Span, Timeline, spans_of


@dataclass
class _Recorded:
    """What is recorded of one device: plans, and who runs them."""

    recorder: Recorder = field(default_factory=Recorder)
    plans: list[RecordedPlan] = field(default_factory=list)
    executors: list[DeviceExecutor] = field(default_factory=list)


@dataclass(frozen=True)
class LocalTrace:
    """process: what the process is called."""

    process: str
    runs: ClientRuns
    devices: dict[str, _Recorded] = field(default_factory=dict)

    def add(self, device: str, plan: RecordedPlan, executor: DeviceExecutor) -> None:
        """Record a plan on one device from now on."""
        recorded = self.devices.setdefault(device, _Recorded())
        executor.record(recorded.recorder, len(recorded.plans))
        recorded.plans.append(plan)
        recorded.executors.append(executor)

    def stop(self) -> Timeline:
        """Record no more, and return what was recorded."""
        spans: list[Span] = []
        for recorded in self.devices.values():
            for executor in recorded.executors:
                executor.record(None)
            spans += spans_of(self.process, recorded.plans, recorded.recorder.noted)
        return Timeline(tuple(spans), tuple(self.runs.noted))
