"""A timeline, to be asked what came before what: on a device, at the other end of a wire, and in the session."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.engine.recording import SEND, WAIT
from runner.engine.timeline import ClientRun, Span, Timeline

_Run = tuple[str, int]


@dataclass(frozen=True)
class Update:
    """One update of the training loop, from where it was asked for to where it was made. Times: CLOCK_MONOTONIC."""

    step: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Beginning:
    """What there was before the part of a run on one device began.

    free_ns: when the device was done with what it did before; None where nothing is known of that. told: the run as the
    session made it; None where it had no end. wait, send: of a launched run the two ends of what came last of all that
    the part receives.
    """

    free_ns: int | None
    told: ClientRun | None
    wait: Span | None = None
    send: Span | None = None


class Course:
    """What was recorded, in order. A device does one thing at a time.

    session: the process that told the devices what to run.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.session = next((run.process for run in timeline.runs), "")
        self._tracks = _tracks(timeline.spans)
        self._begins = {device: [span.begin_ns for span in track] for device, track in self._tracks.items()}
        self._sends = {(*_run(span), span.key): span for span in timeline.spans if span.kind == SEND}
        self._runs = {_run(run): run for run in timeline.runs}
        self._by_end = sorted(timeline.runs, key=lambda run: run.end_ns)
        self._ends = [run.end_ns for run in self._by_end]
        self._last: dict[_Run, Span] = {}
        self._parts: dict[tuple[str, _Run], list[Span]] = {}
        for track in self._tracks.values():
            for span in track:
                last = self._last.setdefault(_run(span), span)
                self._last[_run(span)] = max(last, span, key=lambda each: each.end_ns)
                self._parts.setdefault((span.device, _run(span)), []).append(span)

    @property
    def devices(self) -> dict[str, Sequence[Span]]:
        """The spans of every device, in order."""
        return dict(self._tracks)

    def parts(self) -> Iterator[Sequence[Span]]:
        """The spans of every run on every device, in order."""
        yield from self._parts.values()

    def last_before(self, device: str, time_ns: int) -> Span | None:
        """The last span of a device that begins before a time."""
        count = bisect_left(self._begins[device], time_ns)
        return self._tracks[device][count - 1] if count else None

    def last_ended(self, time_ns: int) -> ClientRun | None:
        """The run that ended last, at a time or before it, as the session saw it."""
        count = bisect_right(self._ends, time_ns)
        return self._by_end[count - 1] if count else None

    def last_of(self, run: ClientRun) -> Span | None:
        """The span of a run that ended last, on any device."""
        return self._last.get(_run(run))

    def send_of(self, span: Span) -> Span | None:
        """The send of what a span waits for, or receives; None for any other span, and where it is not known."""
        return self._sends.get((*_run(span), span.key)) if span.key and span.kind != SEND else None

    def run_of(self, span: Span) -> ClientRun | None:
        """The run of a span as the session made it; None where it had no end."""
        return self._runs.get(_run(span))

    def first_of_part(self, span: Span) -> Span:
        """The first span of the same run on the same device."""
        return self._parts[span.device, _run(span)][0]

    def beginning(self, first: Span) -> Beginning:
        """What came before the first span of a part."""
        before = self.last_before(first.device, first.begin_ns)
        free_ns = None if before is None else before.end_ns
        told = self.run_of(first)
        if told is None or not told.launched:
            return Beginning(free_ns, told)
        return Beginning(free_ns, told, *self._last_arrival(first))

    def _last_arrival(self, first: Span) -> tuple[Span | None, Span | None]:
        """Of a part the wait, and the send that it is for, that was over last.

        A send may be over a little later than the part began: its word is there before it is done.
        """
        own = self._parts[first.device, _run(first)]
        ends = [(span, send) for span in own if span.kind == WAIT and (send := self.send_of(span)) is not None]
        return max(ends, key=lambda each: each[1].end_ns, default=(None, None))


def _tracks(spans: Sequence[Span]) -> dict[str, list[Span]]:
    devices: dict[str, list[Span]] = {}
    for span in spans:
        devices.setdefault(span.device, []).append(span)
    return {
        device: sorted(own, key=lambda span: (span.begin_ns, span.end_ns)) for device, own in sorted(devices.items())
    }


def _run(of: Span | ClientRun) -> _Run:
    return of.client, of.number
