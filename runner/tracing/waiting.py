"""Idle time of devices: how long each waited, and for which other device. Pure functions of the timeline."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runner.engine.run.recording import WAIT
from runner.engine.run.timeline import Span
from runner.tracing.timeline_index import TimelineIndex, Update

IDLE = "idle"
"""Kind of time without a recorded span on a device."""


@dataclass(frozen=True)
class Wait:
    """A device waited from ``begin_ns`` to ``end_ns`` for ``whom``: a device, or the process of the session.

    first: the span that followed.
    """

    first: Span
    whom: str
    begin_ns: int
    end_ns: int


@dataclass
class Waited:
    """Number and total duration of the waits of one device for another in an update."""

    times: int = 0
    ns: int = 0


def waits_between(index: TimelineIndex) -> Iterator[Wait]:
    """Yield the waits of devices before launched runs: for the start of the run, then for the last transfer.

    A launched run begins on a device when everything it receives has arrived, so its waits precede it.
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


def waited(index: TimelineIndex, between: Iterable[Wait], update: Update) -> dict[tuple[str, str], Waited]:
    """Return the waits of an update: (waiting device, awaited device) -> number and duration, longest first.

    between: the result of :func:`waits_between`.
    """
    found: dict[tuple[str, str], Waited] = {}
    waits: list[tuple[str, str, Span | Wait]] = [(each.first.device, each.whom, each) for each in between]
    waits += [(span.device, span.peer, span) for span in index.timeline.spans if _is_wait(index, span)]
    for who, whom, each in waits:
        if each.begin_ns < update.end_ns and each.end_ns > update.begin_ns:
            so_far = found.setdefault((who, whom), Waited())
            so_far.times += 1
            so_far.ns += _ns_within(each, update)
    return dict(sorted(found.items(), key=lambda item: (-item[1].ns, item[0])))


def spent(index: TimelineIndex, update: Update) -> dict[str, dict[str, int]]:
    """Return device -> kind -> ns for an update; the times of a device add up to the duration of the update."""
    found: dict[str, dict[str, int]] = {}
    for device, spans in index.devices.items():
        own = found[device] = {}
        for span in spans:
            if ns := _ns_within(span, update):
                own[span.kind] = own.get(span.kind, 0) + ns
        own[IDLE] = update.end_ns - update.begin_ns - sum(own.values())
    return found


def _is_wait(index: TimelineIndex, span: Span) -> bool:
    """Whether a span is a wait within a run. A launched run does not wait: its tensors arrive before it begins."""
    run = index.run_of(span)
    return span.kind == WAIT and (run is None or not run.launched)


def _ns_within(timed: Span | Wait, update: Update) -> int:
    return max(0, min(timed.end_ns, update.end_ns) - max(timed.begin_ns, update.begin_ns))
