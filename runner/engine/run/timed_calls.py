"""Calls of single instructions that record how long they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner.engine.compile.plan import DevicePlan
from runner.engine.run.binding import Binding
from runner.engine.run.recording import COMPUTE, RECEIVE, SEND, WAIT, PlanRun, Recorder
from runner.kernels.platform import Platform

Call = Callable[[], int | None]


@dataclass(frozen=True)
class TimedCalls:
    """Wraps the calls of one device's bound plan. current_run: returns the current run of the plan."""

    plan: DevicePlan
    bound: Binding
    platform: Platform
    recorder: Recorder
    current_run: Callable[[], PlanRun]

    def wrap(self, position: int, call: Call) -> Call:
        """Return the call of an instruction, timed; a receive records its wait separately."""
        op = self.plan.instructions[position].op
        if op == "recv":
            return self._receive(position)
        kind = SEND if op == "send" else COMPUTE

        def done() -> int | None:
            status = call()
            self.platform.finish()
            return status

        return lambda: self.recorder.timed(self.current_run(), position, kind, done)

    def _receive(self, position: int) -> Callable[[], None]:
        """Return a receive whose two parts are timed: the wait for the tensor, and its check or copy."""
        wait, take = self.bound.receiver(self.plan.instructions[position])

        def finish_receive(value: Any) -> None:
            take(value)
            self.platform.finish()

        def receive() -> None:
            run = self.current_run()
            value = self.recorder.timed(run, position, WAIT, lambda: wait(run.step))
            self.recorder.timed(run, position, RECEIVE, lambda: finish_receive(value))

        return receive
