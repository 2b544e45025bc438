"""What decided how long a step took: the chain of spans that ends last, followed back to the step's beginning.

A device does one thing at a time. So what had to end before a span could begin is the span before it on the same
device; or, where it waited for a tensor, the send of that tensor on another. Pure functions of spans.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runner.engine.recording import SEND, WAIT
from runner.engine.timeline import Span

OTHER = "other"
"""Kind of a time on the path in which its device did nothing that is recorded: calls in between, messages."""


@dataclass(frozen=True)
class Segment:
    """A piece of the path: ``span``, as far as it lies on the path; None where nothing was recorded."""

    device: str
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


@dataclass
class Waited:
    """How often, and how long altogether, one device waited for another in a step, on the path or not."""

    times: int = 0
    ns: int = 0


@dataclass(frozen=True)
class _Track:
    """The spans of one device in order, and when each begins."""

    spans: Sequence[Span]
    begins: list[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "begins", [span.begin_ns for span in self.spans])

    def last_before(self, time_ns: int) -> Span | None:
        """The last span that begins before a time."""
        count = bisect_left(self.begins, time_ns)
        return self.spans[count - 1] if count else None


def by_step(spans: Iterable[Span]) -> dict[int, list[Span]]:
    """The spans of each step, in order of steps."""
    steps: dict[int, list[Span]] = {}
    for span in spans:
        steps.setdefault(span.step, []).append(span)
    return dict(sorted(steps.items()))


def critical_path(spans: Iterable[Span]) -> list[Segment]:
    """The path of one step, from the beginning of its first span to the end of its last, without gap or overlap.

    A wait leads to its sender if that had not finished sending when the wait began: what lies between the end of the
    send and that of the wait is the tensor's travel, and stays a segment of the wait. Otherwise, and where nothing
    leads further back, the path stays on its device.
    """
    tracks = _tracks(spans)
    if not tracks:
        return []
    sends = {span.key: span for track in tracks.values() for span in track.spans if span.kind == SEND}
    start = min(track.begins[0] for track in tracks.values())
    last = max((track.spans[-1] for track in tracks.values()), key=lambda span: span.end_ns)
    device, now = last.device, last.end_ns
    path: list[Segment] = []

    def step_back(span: Span | None, to: int) -> None:
        nonlocal now
        if to < now:
            path.append(Segment(device, span, to, now))
            now = to

    while now > start:
        span = tracks[device].last_before(now)
        if span is None:
            step_back(None, start)
            continue
        step_back(None, span.end_ns)
        send = _waited_for(span, sends, now)
        if send is None:
            step_back(span, span.begin_ns)
        else:
            step_back(span, send.end_ns)
            device = send.device
    return path[::-1]


def waits(spans: Iterable[Span]) -> dict[tuple[str, str], Waited]:
    """How long each device waited for each other one: (who waited, for whom) -> how long, longest first."""
    found: dict[tuple[str, str], Waited] = {}
    for span in spans:
        if span.kind == WAIT:
            waited = found.setdefault((span.device, span.peer), Waited())
            waited.times += 1
            waited.ns += span.ns
    return dict(sorted(found.items(), key=lambda item: (-item[1].ns, item[0])))


def _tracks(spans: Iterable[Span]) -> dict[str, _Track]:
    devices: dict[str, list[Span]] = {}
    for span in spans:
        devices.setdefault(span.device, []).append(span)
    return {device: _Track(sorted(own, key=lambda span: span.begin_ns)) for device, own in devices.items()}


def _waited_for(span: Span, sends: Mapping[str, Span], now: int) -> Span | None:
    """The send that kept a wait from ending earlier; None if it was over when the wait began, or is none."""
    if span.kind != WAIT:
        return None
    send = sends.get(span.key)
    if send is None or send.begin_ns >= now or send.end_ns <= span.begin_ns:
        return None
    return send
