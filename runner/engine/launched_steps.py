"""The launched steps of a worker that have not begun: which of them goes first, and how long they may wait."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from runner.engine.mailbox import RECEIVE_LIMIT_S, WAIT_S, Mailbox
from runner.engine.transport.messages import Launch
from runner.errors import ClusterError


@dataclass(frozen=True)
class LaunchedStep:
    """One that has not begun. received: keys of all that it receives. read_at: when its launch was read, on the
    mailbox's clock."""

    message: Launch
    received: Collection[str]
    read_at: float


class LaunchedSteps:
    """Begin in the order of their launches, but none before all that it receives is there and due."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._waiting: list[LaunchedStep] = []
        self._begun = 0

    def add(self, step: LaunchedStep) -> None:
        """A step was launched."""
        self._waiting.append(step)

    def first(self) -> tuple[LaunchedStep | None, float]:
        """Of the steps that have all they receive the one that can begin first, and seconds until it can.

        Of several that can begin already the one launched first. None, and ``WAIT_S``, where none can within that.
        Raises ClusterError for one that lacks something ``RECEIVE_LIMIT_S`` after its launch was read.
        """
        now = self._mailbox.clock()
        first, wait_s = None, WAIT_S
        for step in self._waiting:
            due = self._mailbox.due(step.message.plan, step.received)
            if due is None:
                self._require_in_time(step)
            elif max(0.0, due - now) < wait_s:
                first, wait_s = step, max(0.0, due - now)
        return first, wait_s

    def begin(self, step: LaunchedStep) -> tuple[float, int]:
        """Take a step out; return the seconds that are left of its delay, and how many had been begun before it.

        As for a Run, a slow worker is slow from when it is told, and what the step receives may come meanwhile.
        """
        self._waiting.remove(step)
        turn, self._begun = self._begun, self._begun + 1
        return max(0.0, step.read_at + step.message.delay_s - self._mailbox.clock()), turn

    def _require_in_time(self, step: LaunchedStep) -> None:
        # What came while the worker was busy with other steps is not late, only not read yet.
        if self._mailbox.empty_at <= step.read_at + RECEIVE_LIMIT_S:
            return
        plan, number = step.message.plan, step.message.step
        missing = self._mailbox.missing(plan, step.received)
        said = ", ".join(f"{key!r} from {sender}" for key, sender in missing.items())
        raise ClusterError(
            f"step {number} of plan {plan!r}: {said} did not arrive within {RECEIVE_LIMIT_S:g} s of its launch"
        )
