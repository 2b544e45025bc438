"""The parts of an update on each device: computation, exposed communication, waiting and input."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.engine.run.recording import COMPUTE, DELAY, INPUT, RECEIVE, SEND
from runner.tracing.critical_path import Wait, ns_within, spent, waits_between, waits_within
from runner.tracing.timeline_index import TimelineIndex, Update

COMPUTATION, COMMUNICATION, WAITING, INPUTS = PARTS = ("compute", "communication", "waiting", "input")
"""Parts of the time of a device. compute: the device executes instructions. communication: the device has no work while
a tensor for it is on the way (exposed communication). waiting: the device has no work, and no tensor for it is on the
way. input: the device waits for the host's work before a step, such as reading a batch."""

_BUSY = (COMPUTE, SEND, RECEIVE, DELAY)


def device_parts(index: TimelineIndex, updates: Sequence[Update]) -> dict[str, dict[str, float]]:
    """Return device -> part -> mean seconds over consecutive updates; the parts add up to the duration of an update."""
    whole = Update(updates[0].step, updates[0].begin_ns, updates[-1].end_ns)
    sent: Counter[str] = Counter()
    for transfer in _transfers(index):
        sent[transfer.first.device] += ns_within(transfer, whole)
    found = {}
    for device, kinds in spent(index, whole).items():
        busy = sum(kinds.get(kind, 0) for kind in _BUSY)
        known = {COMPUTATION: busy, COMMUNICATION: sent[device], INPUTS: kinds.get(INPUT, 0)}
        known[WAITING] = whole.end_ns - whole.begin_ns - sum(known.values())
        found[device] = {part: 1e-9 * known[part] / len(updates) for part in PARTS}
    return found


def _transfers(index: TimelineIndex) -> Iterator[Wait]:
    """Yield the part of each wait for a tensor in which the tensor is on the way."""
    waits = [(wait, index.send_of(wait.first)) for wait in waits_within(index)]
    starts = [(wait, index.start_of_part(wait.first).send) for wait in waits_between(index)]
    waits += [(wait, send) for wait, send in starts if send is not None and wait.peer == send.device]
    for wait, send in waits:
        if send is not None and send.end_ns < wait.end_ns:
            yield replace(wait, begin_ns=max(wait.begin_ns, send.end_ns))
