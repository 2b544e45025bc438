"""A worker's inbox: tensors that come before they are asked for are put aside, all else is handed on.

Where a slow network is emulated, a tensor says when it is due, and is not given out before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from runner.engine.transport.endpoint import Endpoint, Received
from runner.engine.transport.messages import (
    LONGEST_WAIT_S,
    Hello,
    Launch,
    Shutdown,
    StartTrace,
    StopTrace,
    TensorReady,
    Welcome,
)
from runner.engine.transport.text import printable
from runner.errors import ClusterError, SecurityError

WAIT_S = 1.0
"""Longest wait for a message before the worker looks at its heartbeat thread, and at the time, again."""

RECEIVE_LIMIT_S = 600.0
"""A tensor that takes longer will not come. The master's limits are tighter; this one is for a lost master."""

_COARSE_S = 1e-3
"""Endpoints wait whole milliseconds, rounded up; the last one or two of a wait are slept."""


_BETWEEN_STEPS = (Launch, StartTrace, StopTrace)
"""What the master may say while a step is under way; it is done behind it."""


class Stopped(BaseException):
    """The master said shutdown. No ``Exception``: a step that it ends has not failed, and must not say so."""


@dataclass(frozen=True)
class Request:
    """A message that asks for something. read_at: when it was read from the endpoint, on the mailbox's clock."""

    received: Received
    read_at: float


@dataclass(frozen=True)
class Arrived:
    """A tensor that came: the message that describes it, and its payload frames."""

    message: TensorReady
    frames: tuple[memoryview, ...]


class Mailbox:
    """The messages of one worker. Holds at most one tensor for every transfer that its plans announce."""

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """``clock``: seconds of a monotonic clock, the one that the endpoint waits by, and ``pause`` too."""
        self.clock = clock
        self._endpoint = endpoint
        self._pause = pause
        self._senders: dict[tuple[str, str], str] = {}
        self._tensors: dict[tuple[str, str], Arrived] = {}
        self._put_off: deque[Request] = deque()
        self._empty_at = clock()

    def expect(self, plan: str, senders: Mapping[str, str]) -> None:
        """Take in the tensors of a plan from now on. senders: key -> the peer that sends it, once a step."""
        self._senders.update({(plan, key): peer for key, peer in senders.items()})

    def next(self, timeout_s: float) -> Request | None:
        """The next message that asks for something, None when none came in time or something else came.

        What was read while a step waited bears the time of that reading. Raises SecurityError for a tensor
        that nobody announced.
        """
        if self._put_off:
            return self._put_off.popleft()
        return self._next(timeout_s)

    @property
    def empty_at(self) -> float:
        """When all that had arrived was read, the last time, on the mailbox's clock."""
        return self._empty_at

    def missing(self, plan: str, keys: Collection[str]) -> dict[str, str]:
        """Those of these tensors that have not come: key -> the peer that sends it."""
        return {key: self._senders[plan, key] for key in sorted(keys) if (plan, key) not in self._tensors}

    def due(self, plan: str, keys: Collection[str]) -> float | None:
        """When the last of these tensors is due, on the mailbox's clock; None while one has not come."""
        if not all((plan, key) in self._tensors for key in keys):
            return None
        return max((self._tensors[plan, key].message.due for key in keys), default=0.0)

    def _next(self, timeout_s: float) -> Request | None:
        received = self._endpoint.receive(timeout_s)
        if received is None:
            self._empty_at = self.clock()
            return None
        match received.message:
            case TensorReady() as message:
                self._put_aside(received, message)
            case Hello() | Welcome():
                pass  # The endpoint has admitted the caller; there is nothing to answer.
            case _:
                return Request(received, self.clock())
        return None

    def tensor(self, plan: str, step: int, key: str) -> Arrived:
        """Wait for a tensor until it is there and due, and take it out.

        Raises ClusterError past ``RECEIVE_LIMIT_S``, Stopped on shutdown, SecurityError for any other message.
        """
        sender = self._senders[plan, key]
        reason = f"{key!r} was awaited from {sender}"
        deadline = self.clock() + RECEIVE_LIMIT_S
        while (plan, key) not in self._tensors:
            self._take_in(WAIT_S, step, reason)
            if self.clock() > deadline:
                raise ClusterError(f"step {step}: {key!r} did not arrive from {sender} within {RECEIVE_LIMIT_S:g} s")
        self._wait_until(self._tensors[plan, key].message.due, step, reason)
        arrived = self._tensors.pop((plan, key))
        if arrived.message.step != step:
            raise SecurityError(f"{key!r} came from {sender} for step {arrived.message.step}, expected step {step}")
        return arrived

    def wait(self, seconds: float, step: int) -> None:
        """Let time pass before a step, as a slow worker does, and take in tensors meanwhile.

        What is launched meanwhile, or asked of a trace, is kept for :meth:`next`, with the time at which it was read.
        Raises Stopped on shutdown, SecurityError for any other message.
        """
        self._wait_until(self.clock() + seconds, step, "it was put off")

    @property
    def pending(self) -> list[tuple[str, str]]:
        """(plan, key) of the tensors put aside; empty when every plan that was begun has been finished."""
        return sorted(self._tensors)

    def _wait_until(self, due: float, step: int, reason: str) -> None:
        while (left := due - self.clock()) > 0:
            if left > 2 * _COARSE_S:
                self._take_in(min(WAIT_S, left - _COARSE_S), step, reason)
            else:
                self._pause(left)

    def _take_in(self, timeout_s: float, step: int, reason: str) -> None:
        """Read one message of a step in which nothing else may be asked; ``reason``: why the step waits."""
        request = self._next(timeout_s)
        if request is None:
            return
        received = request.received
        if isinstance(received.message, Shutdown):
            raise Stopped
        if isinstance(received.message, _BETWEEN_STEPS):
            self._put_off.append(request)
            return
        raise SecurityError(f"{received.message.kind!r} from {received.source} came within step {step}, while {reason}")

    def _put_aside(self, received: Received, message: TensorReady) -> None:
        transfer = (message.plan, message.key)
        sender = self._senders.get(transfer)
        if sender is None:
            raise SecurityError(f"{_said(message)} came from {received.source}, but no plan here receives it")
        if received.source != sender:
            raise SecurityError(f"{_said(message)} came from {received.source}, expected {sender}")
        if transfer in self._tensors:
            raise SecurityError(f"{_said(message)} came from {sender}, but one is waiting already")
        if (left := message.due - self.clock()) > LONGEST_WAIT_S:
            raise SecurityError(
                f"{_said(message)} came from {sender}, due in {left:g} s, expected {LONGEST_WAIT_S:g} s at most"
            )
        self._tensors[transfer] = Arrived(message, received.frames)


def _said(message: TensorReady) -> str:
    return f"tensor {printable(message.key)} of plan {printable(message.plan)}, step {message.step}"
