"""Analyses of a timeline: the critical path of an update, and the waits of devices.

The critical path is the chain of causes that determined the duration of an update, followed backwards in time.

A device executes one span at a time. The cause of a span is therefore usually the preceding span on its device. But if
the span waited for a tensor, the cause is the send of the tensor on another device. Every span belongs to a run (one
step of a client). If the span is the device's first in its run, and the session started the run only after the device
was free, the cause is the run that ended last before this start. A run is *launched* if its client was started with
``Clients.launch`` (see ``step_driver``), so that runs of other clients can overlap it. In synchronous training the
chain begins when the update begins. If runs extend over several updates, the chain is cut at the update's beginning.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runner.engine.cluster.assignment import peer_of
from runner.engine.run.recording import WAIT
from runner.engine.run.timeline import Span
from runner.tracing.timeline_index import TimelineIndex, Update

OTHER = "other"  # kind of segments without a recorded span: function calls, messages, and decisions of the session


def process_of(place: str) -> str:
    """Return the process of a device; return the name of the session's process unchanged."""
    return peer_of(place) if place.startswith("/") else place


@dataclass(frozen=True)
class Segment:
    """A segment of the critical path. place: name of a device, or of the process of the session.

    span: the recorded span of which the segment is all or a part; None if no span was recorded at this time.
    """

    place: str
    span: Span | None
    begin_ns: int
    end_ns: int

    @property
    def ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def process(self) -> str:
        """Name of the process, such as "worker-0"."""
        return process_of(self.place)

    @property
    def kind(self) -> str:
        """Kind of the span, or ``OTHER``. "wait": the transfer of a tensor, or a wait whose send was not recorded."""
        return OTHER if self.span is None else self.span.kind

    @property
    def layer(self) -> str:
        """Layer of the span; "" if there is no span or if the span has no layer."""
        return "" if self.span is None else self.span.layer


def critical_path(index: TimelineIndex, update: Update) -> list[Segment]:
    """Return the segments from the beginning to the end of one update, without overlaps and gaps."""
    walk = _Walk(index, update)
    while walk.now > walk.start:
        walk.step_back()
    return walk.path[::-1]


class _Walk:
    """A walk back in time that starts in the session at the end of an update.

    From a wait, the walk continues at the send of the tensor if the wait began before the send ended. The time from the
    end of the send to the end of the wait is the transfer of the tensor and becomes a segment of kind "wait".
    """

    def __init__(self, index: TimelineIndex, update: Update) -> None:
        self.start, self.now = update.begin_ns, update.end_ns
        self.path: list[Segment] = []
        self._index = index
        self._device: str | None = None

    def step_back(self) -> None:
        """Add the segments that lead from ``now`` back to the preceding cause, and move ``now`` there."""
        if self._device is None:
            self._in_session()
        else:
            self._on_device(self._device)

    def _in_session(self) -> None:
        """Step back to the run that ended last before ``now``."""
        run = self._index.last_ended(self.now)
        last = None if run is None else self._index.last_of(run)
        if last is None:
            self._add(None, self.start)
        else:
            self._add(None, last.end_ns)
            self._device = last.device

    def _on_device(self, device: str) -> None:
        span = self._index.last_before(device, self.now)
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
        first = self._index.first_of_part(span)
        if first.begin_ns < self.now:
            return
        # Continue at the latest of three causes: the last received transfer, the start of the run, the preceding span.
        known = self._index.start_of_part(first)
        free = self.start if known.free_ns is None else known.free_ns
        started = self.start if known.run is None else known.run.begin_ns
        if known.send is not None and known.send.end_ns >= free:
            self._add(known.wait, known.send.end_ns)
            self._device = known.send.device
        elif started > free:
            self._add(None, started)
            self._device = None

    def _waited_for(self, span: Span) -> Span | None:
        """Return the send that delayed a wait; None if it ended before the wait began, or if ``span`` is not a wait."""
        send = self._index.send_of(span) if span.kind == WAIT else None
        if send is None or send.begin_ns >= self.now or send.end_ns <= span.begin_ns:
            return None
        return send

    def _add(self, span: Span | None, to: int) -> None:
        to = max(to, self.start)
        if to < self.now:
            place = self._index.session if self._device is None else self._device
            self.path.append(Segment(place, span, to, self.now))
            self.now = to


IDLE = "idle"  # kind of the time in which a device has no recorded span


@dataclass(frozen=True)
class Wait:
    """A wait of a device from ``begin_ns`` to ``end_ns`` for ``peer``: a device, or the process of the session.

    first: the recorded span of the wait or, if the wait was not recorded, the span after the wait.
    """

    first: Span
    peer: str
    begin_ns: int
    end_ns: int


@dataclass
class Waited:
    """Number and total duration of the waits of one device for another device, or for the session, in an update."""

    times: int = 0
    ns: int = 0


def waits_between(index: TimelineIndex) -> Iterator[Wait]:
    """Yield the waits of devices before launched runs: first for the start of the run, then for its last transfer.

    A launched run begins on a device only after all tensors that the device receives for it have arrived.
    """
    for first, *_ in index.parts():
        known = index.start_of_part(first)
        if known.run is None or not known.run.launched or known.free_ns is None:
            continue
        started = min(known.run.begin_ns, first.begin_ns)
        if started > known.free_ns:
            yield Wait(first, index.session, known.free_ns, started)
        begin = max(started, known.free_ns)
        if known.send is not None and known.send.end_ns > begin:
            yield Wait(first, known.send.device, begin, first.begin_ns)


def waits_within(index: TimelineIndex) -> Iterator[Wait]:
    """Yield the recorded waits in runs that are not launched; launched runs begin after their tensors have arrived."""
    for span in index.timeline.spans:
        run = index.run_of(span)
        if span.kind == WAIT and (run is None or not run.launched):
            yield Wait(span, span.peer, span.begin_ns, span.end_ns)


def waited(index: TimelineIndex, between: Iterable[Wait], update: Update) -> dict[tuple[str, str], Waited]:
    """Return the waits of an update: (waiting device, ``Wait.peer``) -> number and duration, longest first.

    between: the waits that :func:`waits_between` yields; waits within runs are counted too.
    """
    found: dict[tuple[str, str], Waited] = {}
    for wait in (*between, *waits_within(index)):
        if wait.begin_ns < update.end_ns and wait.end_ns > update.begin_ns:
            so_far = found.setdefault((wait.first.device, wait.peer), Waited())
            so_far.times += 1
            so_far.ns += ns_within(wait, update)
    return dict(sorted(found.items(), key=lambda item: (-item[1].ns, item[0])))


def spent(index: TimelineIndex, update: Update) -> dict[str, dict[str, int]]:
    """Return device -> kind of span -> ns in an update; the times of a device add up to the duration of the update."""
    found: dict[str, dict[str, int]] = {}
    for device, spans in index.devices.items():
        own: Counter[str] = Counter()
        for span in spans:
            own[span.kind] += ns_within(span, update)
        found[device] = {**+own, IDLE: update.end_ns - update.begin_ns - own.total()}
    return found


def ns_within(timed: Span | Wait, update: Update) -> int:
    """Return the nanoseconds of a span or wait that are within an update."""
    return max(0, min(timed.end_ns, update.end_ns) - max(timed.begin_ns, update.begin_ns))
