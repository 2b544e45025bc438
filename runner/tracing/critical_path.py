"""What decided how long an update took: the chain of causes that ends with it, followed back to its beginning.

A device does one thing at a time. So what had to end before a span could begin is the span before it on the same
device; where it waited for a tensor, the send of that tensor on another; and where it is the first of its run, what the
session waited for before it told the device to begin, which is the run that ended last before that.

Where every update waits for all that it is made of, the chain begins with the update. Where clients go on across
updates, as in asynchronous training, it is cut there. Pure functions of what was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.engine.recording import WAIT
from runner.engine.timeline import Span
from runner.tracing.course import Course, Update

OTHER = "other"
"""Kind of a time on the path in which nothing is recorded: calls in between, messages, what the session decides."""


@dataclass(frozen=True)
class Segment:
    """A piece of the path: ``span``, as far as it lies on the path; None where nothing was recorded.

    place: a device, or the process of the session.
    """

    place: str
    span: Span | None
    begin_ns: int
    end_ns: int

    @property
    def ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.begin_ns

    @property
    def kind(self) -> str:
        """The span's kind, or ``OTHER``. A wait is the time that a tensor travelled, or that its sender is unknown."""
        return OTHER if self.span is None else self.span.kind

    @property
    def layer(self) -> str:
        """The span's layer, "" for none."""
        return "" if self.span is None else self.span.layer


def critical_path(course: Course, update: Update) -> list[Segment]:
    """The path of one update, from its beginning to its end, without gap or overlap."""
    walk = _Walk(course, update)
    while walk.now > walk.start:
        walk.step_back()
    return walk.path[::-1]


class _Walk:
    """Goes back in time, from the session at the end of an update.

    A wait leads to its sender if that had not finished sending when the wait began: what lies between the end of the
    send and that of the wait is the tensor's travel, and stays a segment of the wait.
    """

    def __init__(self, course: Course, update: Update) -> None:
        self.start, self.now = update.begin_ns, update.end_ns
        self.path: list[Segment] = []
        self._course = course
        self._device: str | None = None

    def step_back(self) -> None:
        """Add what came last before now."""
        if self._device is None:
            self._in_session()
        else:
            self._on_device(self._device)

    def _in_session(self) -> None:
        """The session went on when the run before had ended."""
        run = self._course.last_ended(self.now)
        last = None if run is None else self._course.last_of(run)
        if last is None:
            self._add(None, self.start)
        else:
            self._add(None, last.end_ns)
            self._device = last.device

    def _on_device(self, device: str) -> None:
        span = self._course.last_before(device, self.now)
        if span is None:
            self._add(None, self.start)
            return
        self._add(None, span.end_ns)
        send = self._waited_for(span)
        if send is not None:
            self._add(span, send.end_ns)
            self._device = send.device
            return
        self._add(span, span.begin_ns)
        first = self._course.first_of_part(span)
        if first.begin_ns >= self.now:
            self._before_part(first)

    def _before_part(self, first: Span) -> None:
        """Go where that was which came last: of what the part waits for, the order to begin, and the device itself."""
        known = self._course.beginning(first)
        free = self.start if known.free_ns is None else known.free_ns
        told = self.start if known.told is None else known.told.begin_ns
        if known.send is not None and known.send.end_ns >= free:
            self._add(known.wait, known.send.end_ns)
            self._device = known.send.device
        elif told > free:
            self._add(None, told)
            self._device = None

    def _waited_for(self, span: Span) -> Span | None:
        """The send that kept a wait from ending earlier; None if it was over when the wait began, or is none."""
        send = self._course.send_of(span) if span.kind == WAIT else None
        if send is None or send.begin_ns >= self.now or send.end_ns <= span.begin_ns:
            return None
        return send

    def _add(self, span: Span | None, to: int) -> None:
        to = max(to, self.start)
        if to < self.now:
            place = self._course.session if self._device is None else self._device
            self.path.append(Segment(place, span, to, self.now))
            self.now = to
