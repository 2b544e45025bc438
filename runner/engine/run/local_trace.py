"""An active trace of the devices of one process."""

from dataclasses import dataclass, field

from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.recording import Recorder
from runner.engine.run.timeline import ClientRuns, RecordedPlan, Span, Timeline, spans_of


@dataclass
class _Recorded:
    """The recorded plans of one device and their executors."""

    recorder: Recorder = field(default_factory=Recorder)
    plans: list[RecordedPlan] = field(default_factory=list)
    executors: list[DeviceExecutor] = field(default_factory=list)


@dataclass(frozen=True)
class LocalTrace:
    """An active trace. process: name of the process in the spans. runs: the client runs that the session records."""

    process: str
    runs: ClientRuns
    devices: dict[str, _Recorded] = field(default_factory=dict)

    def add(self, device: str, plan: RecordedPlan, executor: DeviceExecutor) -> None:
        """Begin to record a plan on one device."""
        recorded = self.devices.setdefault(device, _Recorded())
        executor.record(recorded.recorder, len(recorded.plans))
        recorded.plans.append(plan)
        recorded.executors.append(executor)

    def stop(self) -> Timeline:
        """Stop recording and return the timeline."""
        spans: list[Span] = []
        for recorded in self.devices.values():
            for executor in recorded.executors:
                executor.record(None)
            spans += spans_of(self.process, recorded.plans, recorded.recorder.spans)
        return Timeline(tuple(spans), tuple(self.runs.ended))
