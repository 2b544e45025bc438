"""Who was idle, for how long and for whom. Pure functions of what was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runner.engine.recording import WAIT
from runner.engine.timeline import Span
from runner.tracing.course import Course, Update

IDLE = "idle"
"""Kind of a time in which a device did nothing that is recorded."""


@dataclass(frozen=True)
class Wait:
    """A device did nothing from ``begin_ns`` to ``end_ns`` because of ``whom``: a device, or the session's process.

    first: what it did then.
    """

    first: Span
    whom: str
    begin_ns: int
    end_ns: int


@dataclass
class Waited:
    """How often, and how long altogether, one device waited for another in an update, on the critical path or not."""

    times: int = 0
    ns: int = 0


def waits_between(course: Course) -> Iterator[Wait]:
    """The waits of devices between runs that were launched: for the order to begin, then for what comes last.

    Such a run begins on a device when all that it receives there is there, so that the waiting lies before it.
    """
    for first, *_ in course.parts():
        known = course.beginning(first)
        if known.told is None or not known.told.launched or known.free_ns is None:
            continue
        told = min(known.told.begin_ns, first.begin_ns)
        if told > known.free_ns:
            yield Wait(first, course.session, known.free_ns, told)
        begin = max(told, known.free_ns)
        if known.send is not None and known.send.end_ns > begin:
            yield Wait(first, known.send.device, begin, first.begin_ns)


def waited(course: Course, between: Iterable[Wait], update: Update) -> dict[tuple[str, str], Waited]:
    """How long each device waited for each other one in an update: (who, for whom) -> how long, longest first.

    between: all that came of :func:`waits_between`.
    """
    found: dict[tuple[str, str], Waited] = {}
    waits: list[tuple[str, str, Span | Wait]] = [(each.first.device, each.whom, each) for each in between]
    waits += [(span.device, span.peer, span) for span in course.timeline.spans if _is_wait(course, span)]
    for who, whom, each in waits:
        if each.begin_ns < update.end_ns and each.end_ns > update.begin_ns:
            so_far = found.setdefault((who, whom), Waited())
            so_far.times += 1
            so_far.ns += _ns_within(each, update)
    return dict(sorted(found.items(), key=lambda item: (-item[1].ns, item[0])))


def spent(course: Course, update: Update) -> dict[str, dict[str, int]]:
    """What every device did with its time in an update: device -> kind -> ns, which add up to that of the update."""
    found: dict[str, dict[str, int]] = {}
    for device, spans in course.devices.items():
        own = found[device] = {}
        for span in spans:
            if ns := _ns_within(span, update):
                own[span.kind] = own.get(span.kind, 0) + ns
        own[IDLE] = update.end_ns - update.begin_ns - sum(own.values())
    return found


def _is_wait(course: Course, span: Span) -> bool:
    """Whether a span is a wait within a run; what a launched one waits for has been there when it begins."""
    run = course.run_of(span)
    return span.kind == WAIT and (run is None or not run.launched)


def _ns_within(timed: Span | Wait, update: Update) -> int:
    return max(0, min(timed.end_ns, update.end_ns) - max(timed.begin_ns, update.begin_ns))
