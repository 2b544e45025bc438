"""Calls of single instructions, each of which notes how long it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner.engine.binding import Binding
from runner.engine.plan import DevicePlan
from runner.engine.recording import COMPUTE, RECEIVE, SEND, WAIT, Recorder, RunOf
from runner.kernels.platform import Platform

Call = Callable[[], int | None]


@dataclass(frozen=True)
class TimedCalls:
    """Of one device's bound plan. under_way: tells which run of the plan is under way."""

    plan: DevicePlan
    bound: Binding
    platform: Platform
    recorder: Recorder
    under_way: Callable[[], RunOf]

    def timed(self, position: int, call: Call) -> Call:
        """Note how long the call of an instruction takes; a receive itself tells waiting from the rest."""
        op = self.plan.instructions[position].op
        if op == "recv":
            return self._receive(position)
        kind = SEND if op == "send" else COMPUTE

        def done() -> int | None:
            status = call()
            self.platform.finish()
            return status

        return lambda: self.recorder.timed(self.under_way(), position, kind, done)

    def _receive(self, position: int) -> Callable[[], None]:
        """A receive in its two parts: until the tensor is there, and looking at it or bringing it over."""
        wait, take = self.bound.receiver(self.plan.instructions[position])

        def bring(value: Any) -> None:
            take(value)
            self.platform.finish()

        def receive() -> None:
            run = self.under_way()
            value = self.recorder.timed(run, position, WAIT, lambda: wait(run.step))
            self.recorder.timed(run, position, RECEIVE, lambda: bring(value))

        return receive
