"""The parts of an update on each device: computation, exposed communication, waiting and input."""

from collections.abc import Iterator, Sequence

from runner.engine.run.recording import COMPUTE, DELAY, INPUT, RECEIVE, SEND, WAIT
from runner.engine.run.timeline import Span
from runner.tracing.critical_path import waits_between
from runner.tracing.timeline_index import TimelineIndex, Update

COMPUTATION, COMMUNICATION, WAITING, INPUTS = PARTS = ("compute", "communication", "waiting", "input")
"""Parts of the time of a device. compute: it executes instructions. communication: it has no work while a tensor that
it waits for is on the way (exposed communication). waiting: it has no work, and no tensor for it is on the way.
input: it waits for the host's work before a step, such as reading a batch."""

_BUSY = (COMPUTE, SEND, RECEIVE, DELAY)


def device_parts(index: TimelineIndex, updates: Sequence[Update]) -> dict[str, dict[str, float]]:
    """Return device -> part -> mean seconds over consecutive updates; the parts add up to the duration of an update.

    Raises ValueError if there are no updates.
    """
    if not updates:
        raise ValueError("updates=[]: expected one or more")
    begin, end = updates[0].begin_ns, updates[-1].end_ns
    sent = dict[str, int]()
    for device, since, until in _transfers(index):
        sent[device] = sent.get(device, 0) + _overlap(since, until, begin, end)
    found = {}
    for device, spans in index.devices.items():
        busy = sum(_overlap(span.begin_ns, span.end_ns, begin, end) for span in spans if span.kind in _BUSY)
        read = sum(_overlap(span.begin_ns, span.end_ns, begin, end) for span in spans if span.kind == INPUT)
        known = {COMPUTATION: busy, COMMUNICATION: sent.get(device, 0), INPUTS: read}
        known[WAITING] = end - begin - sum(known.values())
        found[device] = {part: 1e-9 * known[part] / len(updates) for part in PARTS}
    return found


def _transfers(index: TimelineIndex) -> Iterator[tuple[str, int, int]]:
    """Yield device, begin and end of each time in which a device waits for a tensor that is on the way."""
    for span in index.timeline.spans:
        run = index.run_of(span)
        if span.kind == WAIT and (run is None or not run.launched):
            yield from _sent(span.device, index.send_of(span), span.begin_ns, span.end_ns)
    for wait in waits_between(index):
        send = index.start_of_part(wait.first).send
        if send is not None and wait.peer == send.device:
            yield from _sent(wait.first.device, send, wait.begin_ns, wait.end_ns)


def _sent(device: str, send: Span | None, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
    if send is not None and send.end_ns < end:
        yield device, max(begin, send.end_ns), end


def _overlap(begin: int, end: int, first: int, last: int) -> int:
    return max(0, min(end, last) - max(begin, first))
