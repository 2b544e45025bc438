"""The mailbox of a worker, which stores arriving tensors until a step receives them and returns other messages.

If a slow network is emulated, a message states when its tensor is due, and the tensor is not delivered earlier.
:class:`LaunchQueue` holds the steps of Launch messages until they begin, and applies the time limit for their tensors.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from runner.engine.cluster.arrivals import Arrivals, TransferKey
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.endpoint import ClosedConnections, Endpoint, Received
from runner.engine.cluster.transport.shared_memory import ArenaReader
from runner.errors import ClusterError, SecurityError
from runner.system.text import printable

WAIT_S = 1.0  # longest wait for a message in seconds; then the worker checks its heartbeat thread and the time limits
RECEIVE_LIMIT_S = 600.0  # time limit for a tensor in seconds; applies if the master, whose limits are shorter, is lost
_GAP_S = 10.0  # seconds without a read of the inbox after which the time limits of awaited tensors restart
_POLL_RESOLUTION_S = 1e-3  # resolution of an endpoint's waits in seconds; the end of a wait uses ``pause``

_QUEUED_KINDS = (
    messages.Run,
    messages.Launch,
    messages.StartTrace,
    messages.StopTrace,
    messages.AskTime,
    messages.Moved,
)
"""Messages that the master may send while a step runs; they are handled after the step."""


class Stopped(BaseException):
    """Raised when the master sends Shutdown. Not an ``Exception``, because an interrupted step has not failed."""

    def __init__(self, message: messages.Shutdown) -> None:
        super().__init__(message.reason)
        self.message = message


class StepAbandoned(BaseException):
    """Raised in a step when the master sends Abandon. Not an ``Exception``, because the step has not failed."""

    def __init__(self, message: messages.Abandon) -> None:
        super().__init__(f"{', '.join(message.lost)} were lost")
        self.message = message


@dataclass(frozen=True)
class Request:
    """A message for the worker to handle. read_at: time at which the message was read, by the mailbox's clock."""

    received: Received
    read_at: float


class Mailbox:
    """The messages of one worker. A mailbox stores at most one tensor for each transfer of the loaded plans."""

    def __init__(
        self, endpoint: Endpoint, clock: Callable[[], float] = time.monotonic, pause: Callable[..., None] = time.sleep
    ) -> None:
        """``clock``: returns the time, in seconds, of the monotonic clock that the endpoint and ``pause`` also use."""
        self.clock = clock
        self._endpoint = endpoint
        self._connections = ClosedConnections(endpoint)
        self._pause = pause
        self._senders: dict[TransferKey, str] = {}
        self._arrivals = Arrivals()
        self._tensors: dict[TransferKey, messages.TensorsReady] = {}
        self._queued: deque[Request] = deque()
        self._read_at = self.resumed_at = clock()  # resumed_at: time of the first read after the latest gap
        self._checked_at = self._read_at

    def expect(self, plan: str, senders: Mapping[str, str], copies: Mapping[str, ArenaReader] | None = None) -> None:
        """Accept the tensors of a plan. senders: key -> the peer that sends the tensor once per step.

        copies: key -> reader of the sender's arena, for tensors that arrive in parts.
        """
        self._arrivals.expect(plan, copies or {})
        self._senders.update({(plan, key): peer for key, peer in senders.items()})

    def clear(self) -> None:
        """Drop all tensors and requests that have arrived, except new addresses, which remain valid."""
        self._tensors.clear()
        self._arrivals.clear()
        self._queued = deque(each for each in self._queued if isinstance(each.received.message, messages.Moved))

    def next(self, timeout_s: float) -> Request | None:
        """Return the next request; None if no message arrived in time or the message was not a request.

        A request keeps the time at which it was read. Raises SecurityError for a tensor that no loaded plan receives.
        """
        return self._queued.popleft() if self._queued else self._next(timeout_s)

    def check_connections(self) -> None:
        """Raise ClusterError if a connection has been closed for a while. Waits during a step include this check."""
        now = self.clock()
        if now >= self._checked_at + WAIT_S:
            self._checked_at = now
            if lost := self._connections.lost(now):
                raise ClusterError(f"{self._endpoint.name} has lost its connection to {', '.join(lost)}")

    def catch_up(self) -> None:
        """Read all messages that have arrived; requests are queued for :meth:`next`."""
        self._queued.extend(self._arrived())

    def missing(self, plan: str, keys: Collection[str]) -> dict[str, str]:
        """Return the missing tensors of ``keys``: key -> the peer that sends the tensor."""
        return {key: self._senders[plan, key] for key in sorted(keys) if (plan, key) not in self._tensors}

    def due(self, plan: str, keys: Collection[str]) -> float | None:
        """Return the time at which the last tensor of ``keys`` is due; None while any of them has not arrived."""
        if not all((plan, key) in self._tensors for key in keys):
            return None
        return max((self._tensors[plan, key].due for key in keys), default=0.0)

    def _arrived(self) -> Iterator[Request]:
        """Read all messages that have arrived, for at most ``WAIT_S``; yield the requests."""
        deadline = self.clock() + WAIT_S
        while self.clock() <= deadline and (received := self._receive(0.0)) is not None:
            if (request := self._dispatch(received)) is not None:
                yield request

    def _next(self, timeout_s: float) -> Request | None:
        received = self._receive(timeout_s)
        return None if received is None else self._dispatch(received)

    def _receive(self, timeout_s: float) -> Received | None:
        received = self._endpoint.receive(timeout_s)
        now = self.clock()
        if now - self._read_at > _GAP_S:
            # Senders may have been stopped too, and their tensors may still be on the way.
            self.resumed_at = now
        self._read_at = now
        return received

    def _dispatch(self, received: Received) -> Request | None:
        """Store tensors, ignore a hello or a welcome, and return any other message as a request."""
        match received.message:
            case messages.TensorsReady() as message:
                self._store(received, message)
            case messages.TensorsPart():
                if (ready := self._arrivals.add(received)) is not None:
                    self._store(received, ready)
            case messages.Hello() | messages.Welcome():
                pass  # The endpoint has admitted the caller; no answer is needed.
            case _:
                return Request(received, self.clock())
        return None

    def take(self, plan: str, step: int, key: str) -> None:
        """Wait until a tensor has arrived and is due, and remove it from the mailbox.

        Raises ClusterError after ``RECEIVE_LIMIT_S``, and the errors of :meth:`wait`.
        """
        sender = self._senders[plan, key]
        reason = f"waiting for tensor {key!r} from {sender}"
        begun = self.clock()
        while (plan, key) not in self._tensors:
            self._read_during_step(WAIT_S, step, reason)
            if self.clock() > max(begun, self.resumed_at) + RECEIVE_LIMIT_S:
                raise ClusterError(
                    f"step {step}: tensor {key!r} did not arrive from {sender} within {RECEIVE_LIMIT_S:g} s"
                )
        self._wait_until(self._tensors[plan, key].due, step, reason)
        message = self._tensors.pop((plan, key))
        if message.step != step:
            raise SecurityError(f"tensor {key!r} from {sender} is for step {message.step}, expected step {step}")

    def wait(self, seconds: float, step: int) -> None:
        """Delay a step to emulate a slow worker, and store the tensors that arrive meanwhile.

        Launch and trace messages are queued for :meth:`next` with the time at which they were read. Raises Stopped on
        shutdown, StepAbandoned if another process was lost, SecurityError for an unexpected message.
        """
        self._wait_until(self.clock() + seconds, step, "delaying the step as an emulated slow worker")

    def look(self, step: int, reason: str) -> None:
        """Handle the messages that have arrived, without waiting; raises the errors of :meth:`wait`."""
        self.check_connections()
        for request in self._arrived():
            self._interrupt(request, step, reason)

    def _wait_until(self, due: float, step: int, reason: str) -> None:
        while (left := due - self.clock()) > 0:
            if left > 2 * _POLL_RESOLUTION_S:
                self._read_during_step(min(WAIT_S, left - _POLL_RESOLUTION_S), step, reason)
            else:
                self._pause(left)

    def _read_during_step(self, timeout_s: float, step: int, reason: str) -> None:
        """Handle at most one message while a step waits; raises the errors of :meth:`wait`. reason: for errors."""
        self.check_connections()
        request = self._next(timeout_s)
        if request is not None:
            self._interrupt(request, step, reason)

    def _interrupt(self, request: Request, step: int, reason: str) -> None:
        """Queue a request that arrived during a step, or raise an error that ends the step."""
        message, source = request.received.message, request.received.source
        if isinstance(message, messages.Shutdown):
            raise Stopped(message)
        if isinstance(message, messages.Abandon):
            raise StepAbandoned(message)
        if not isinstance(message, _QUEUED_KINDS):
            raise SecurityError(
                f"{message.kind!r} from {source}: unexpected message during step {step}, while {reason}"
            )
        self._queued.append(request)

    def _store(self, received: Received, message: messages.TensorsReady) -> None:
        for key in message.keys:
            transfer, sender = (message.plan, key), self._senders.get((message.plan, key))
            if sender is None:
                wrong = "no loaded plan receives this tensor"
            elif received.source != sender:
                wrong = f"expected the tensor from {sender}"
            elif isinstance(received.message, messages.TensorsReady) and self._arrivals.expects(message.plan, key):
                wrong = "expected its bytes, because the processes share no memory"
            elif transfer in self._tensors:
                wrong = "the previous tensor has not been used yet"
            elif (left := message.due - self.clock()) > messages.LONGEST_WAIT_S:
                wrong = f"due in {left:g} s, expected at most {messages.LONGEST_WAIT_S:g} s"
            else:
                self._tensors[transfer] = message
                continue
            raise SecurityError(
                f"tensor {printable(key)} of plan {printable(message.plan)}, step {message.step} from "
                f"{received.source}: {wrong}"
            )


@dataclass(frozen=True)
class QueuedLaunch:
    """A launched step that has not begun. received: keys of the tensors that the step receives. read_at: time at
    which the launch message was read, by the mailbox's clock."""

    message: messages.Launch
    received: Collection[str]
    read_at: float


class LaunchQueue:
    """Launched steps, ``waiting`` in launch order until all tensors that they receive have arrived and are due."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.waiting: list[QueuedLaunch] = []
        self._begun = 0

    def first(self) -> tuple[QueuedLaunch | None, float]:
        """Return the next step to begin and the seconds until it can; (None, ``WAIT_S``) if none can within ``WAIT_S``.

        Of several, returns the one launched first. Raises ClusterError if a tensor is missing for ``RECEIVE_LIMIT_S``.
        """
        now = self._mailbox.clock()
        first, wait_s = None, WAIT_S
        for step in self.waiting:
            due = self._due(step)
            if due is not None and max(0.0, due - now) < wait_s:
                first, wait_s = step, max(0.0, due - now)
        return first, wait_s

    def begin(self, step: QueuedLaunch) -> tuple[float, int]:
        """Remove a step; return the remaining seconds of its delay and the number of launched steps begun before it.

        The delay begins when the launch message is read. Tensors may arrive during the delay.
        """
        self.waiting.remove(step)
        turn, self._begun = self._begun, self._begun + 1
        return max(0.0, step.read_at + step.message.delay_s - self._mailbox.clock()), turn

    def _due(self, step: QueuedLaunch) -> float | None:
        """Return when a step can begin; None while a tensor is missing. Raises ClusterError after the time limit."""
        mailbox, plan = self._mailbox, step.message.plan
        for caught_up in (False, True):
            due = mailbox.due(plan, step.received)
            if due is not None or mailbox.clock() <= max(step.read_at, mailbox.resumed_at) + RECEIVE_LIMIT_S:
                return due
            # A tensor may have arrived while the worker was busy with other steps; such a tensor is unread, not late.
            if not caught_up:
                mailbox.catch_up()
        tensors = ", ".join(f"{key!r} from {sender}" for key, sender in mailbox.missing(plan, step.received).items())
        raise ClusterError(
            f"step {step.message.step} of plan {plan!r}: {tensors} did not arrive within {RECEIVE_LIMIT_S:g} s of the "
            "launch"
        )
