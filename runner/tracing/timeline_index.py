"""An index of a timeline that finds the last span or client run before a time, and the send of a received tensor."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from runner.engine.run.recording import SEND, WAIT
from runner.engine.run.timeline import ClientRun, Span, Timeline

_Run = tuple[str, int]


@dataclass(frozen=True)
class Update:
    """One update of the training loop: its step and the times (CLOCK_MONOTONIC) at which it began and ended."""

    step: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class PartStart:
    """The events before a part of a run. A part consists of all spans of a run on one device.

    free_ns: end of the device's preceding span; None if there is none. run: the session's record of the run; None if
    the run did not end. wait, send: spans of the last transfer to the part; None unless the run is ``launched``.
    """

    free_ns: int | None
    run: ClientRun | None
    wait: Span | None = None
    send: Span | None = None


class TimelineIndex:
    """The recorded spans and runs of clients, sorted and indexed. A device executes one span at a time.

    session: the process that started the runs. devices: device -> its spans, sorted by time.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.session = next((run.process for run in timeline.runs), "")
        spans = sorted(timeline.spans, key=lambda span: (span.device, span.begin_ns, span.end_ns))
        self.devices = {device: list(own) for device, own in groupby(spans, lambda span: span.device)}
        self._sends = {(*_run(span), span.key): span for span in timeline.spans if span.kind == SEND}
        self._runs = {_run(run): run for run in timeline.runs}
        self._by_end = sorted(timeline.runs, key=lambda run: run.end_ns)
        self._last: dict[_Run, Span] = {}
        self._parts: dict[tuple[str, _Run], list[Span]] = {}
        for own_spans in self.devices.values():
            for span in own_spans:
                last = self._last.setdefault(_run(span), span)
                self._last[_run(span)] = max(last, span, key=lambda each: each.end_ns)
                self._parts.setdefault((span.device, _run(span)), []).append(span)

    def parts(self) -> Iterator[Sequence[Span]]:
        """Yield each part: the spans of one run on one device, sorted by time."""
        yield from self._parts.values()

    def last_before(self, device: str, time_ns: int) -> Span | None:
        """Return the last span of a device that begins before ``time_ns``."""
        count = bisect_left(self.devices[device], time_ns, key=lambda span: span.begin_ns)
        return self.devices[device][count - 1] if count else None

    def last_ended(self, time_ns: int) -> ClientRun | None:
        """Return the last run that ended at or before ``time_ns``."""
        count = bisect_right(self._by_end, time_ns, key=lambda run: run.end_ns)
        return self._by_end[count - 1] if count else None

    def last_of(self, run: ClientRun) -> Span | None:
        """Return the span of a run that ends last, on any device."""
        return self._last.get(_run(run))

    def send_of(self, span: Span) -> Span | None:
        """Return the send of the tensor of a wait or receive; None for other spans or if the send was not recorded."""
        return self._sends.get((*_run(span), span.key)) if span.key and span.kind != SEND else None

    def run_of(self, span: Span) -> ClientRun | None:
        """Return the session's record of a span's run; None if the run did not end."""
        return self._runs.get(_run(span))

    def first_of_part(self, span: Span) -> Span:
        return self._parts[span.device, _run(span)][0]

    def start_of_part(self, first: Span) -> PartStart:
        """Return the events that precede a part, given the part's first span."""
        before = self.last_before(first.device, first.begin_ns)
        free_ns = None if before is None else before.end_ns
        run = self.run_of(first)
        if run is None or not run.launched:
            return PartStart(free_ns, run)
        return PartStart(free_ns, run, *self._last_arrival(first))

    def _last_arrival(self, first: Span) -> tuple[Span | None, Span | None]:
        """Return the wait and the send of the transfer that a part received last, given the part's first span.

        A send may end shortly after the part begins, because the message can arrive before the call that sent it ends.
        """
        own = self._parts[first.device, _run(first)]
        ends = [(span, send) for span in own if span.kind == WAIT and (send := self.send_of(span)) is not None]
        return max(ends, key=lambda each: each[1].end_ns, default=(None, None))


def _run(of: Span | ClientRun) -> _Run:
    return of.client, of.number
