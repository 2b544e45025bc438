"""The launch queue of a worker: launched steps that have not begun, their order and their time limit."""

from collections.abc import Collection
from dataclasses import dataclass

from runner.engine.cluster.mailbox import RECEIVE_LIMIT_S, WAIT_S, Mailbox
from runner.engine.cluster.transport.messages import Launch
from runner.errors import ClusterError


@dataclass(frozen=True)
class QueuedLaunch:
    """A launched step that has not begun. received: keys of the tensors that it receives. read_at: time at which its
    message was read, by the mailbox's clock."""

    message: Launch
    received: Collection[str]
    read_at: float


class LaunchQueue:
    """Steps begin in launch order, but each only when all tensors that it receives are there and due."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._waiting: list[QueuedLaunch] = []
        self._begun = 0

    def add(self, step: QueuedLaunch) -> None:
        """Add a launched step."""
        self._waiting.append(step)

    def first(self) -> tuple[QueuedLaunch | None, float]:
        """Return the step that can begin first and the seconds until then, or None and ``WAIT_S`` if none can by then.

        If several can begin now, the one launched first is returned. Raises ClusterError for a step that still lacks a
        tensor ``RECEIVE_LIMIT_S`` after its message was read.
        """
        now = self._mailbox.clock()
        first, wait_s = None, WAIT_S
        for step in self._waiting:
            due = self._due(step)
            if due is not None and max(0.0, due - now) < wait_s:
                first, wait_s = step, max(0.0, due - now)
        return first, wait_s

    def begin(self, step: QueuedLaunch) -> tuple[float, int]:
        """Remove a step; return the seconds left of its delay and the number of steps begun before it.

        As for a Run message, the delay begins when the message is read, and tensors may arrive during the delay.
        """
        self._waiting.remove(step)
        turn, self._begun = self._begun, self._begun + 1
        return max(0.0, step.read_at + step.message.delay_s - self._mailbox.clock()), turn

    def _due(self, step: QueuedLaunch) -> float | None:
        """Return when a step can begin, None while it lacks a tensor. Raises ClusterError after the time limit."""
        due = self._mailbox.due(step.message.plan, step.received)
        if due is not None or not self._is_late(step):
            return due
        # A tensor may have arrived while the worker was busy with other steps; it is unread, not late.
        self._mailbox.catch_up()
        due = self._mailbox.due(step.message.plan, step.received)
        if due is not None or not self._is_late(step):
            return due
        plan, number = step.message.plan, step.message.step
        missing = self._mailbox.missing(plan, step.received)
        tensors = ", ".join(f"{key!r} from {sender}" for key, sender in missing.items())
        raise ClusterError(
            f"step {number} of plan {plan!r}: {tensors} did not arrive within {RECEIVE_LIMIT_S:g} s of its launch"
        )

    def _is_late(self, step: QueuedLaunch) -> bool:
        return self._mailbox.clock() > max(step.read_at, self._mailbox.resumed_at) + RECEIVE_LIMIT_S
