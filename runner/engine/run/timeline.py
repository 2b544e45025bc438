"""The timeline (the spans of all devices on one clock, each with its layer or transfer) and its recording.

Clients (``compile.program.Client``) run one by one or, if launched, concurrently. Each run of a client has the same
number on all devices. This number identifies the spans of one run, and matches each send with its receive.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from runner.engine.compile.plan import DevicePlan, Instruction
from runner.engine.graph import Graph
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.recording import COMPUTE, DELAY, INPUT, RECEIVE, SEND, WAIT, RawSpan, Recorder
from runner.errors import SecurityError

_KINDS_OF = {"send": (SEND,), "recv": (WAIT, RECEIVE)}
_KINDS_WITHOUT_NODE = (INPUT, DELAY)


@dataclass(frozen=True)
class Span:
    """One activity of a device from ``begin_ns`` to ``end_ns``, in nanoseconds of CLOCK_MONOTONIC.

    process: name of the device's process. client, number, step: see :class:`ClientRun`. kind: one of
    ``recording.KINDS``. node, op: the instruction's node and op; for inputs and delays, which belong to no node, both
    are equal to ``kind``. layer: name of the node's layer, "" if it has none. key, peer, nbytes: key, device at the
    other end and tensor size in bytes of a transfer; "", "" and 0 for other spans.
    """

    process: str
    device: str
    client: str
    number: int
    step: int
    kind: str
    node: str
    op: str
    layer: str
    begin_ns: int
    end_ns: int
    key: str = ""
    peer: str = ""
    nbytes: int = 0

    @property
    def ns(self) -> int:
        """Duration in nanoseconds."""
        return self.end_ns - self.begin_ns

    def earlier(self, offset_ns: int) -> "Span":
        """Return the span on another clock, which is ``offset_ns`` behind the clock of the recording."""
        return replace(self, begin_ns=self.begin_ns - offset_ns, end_ns=self.end_ns - offset_ns)


@dataclass(frozen=True)
class ClientRun:
    """One run of a client, from its start until the session has all results. process: name of the session's process.

    number: number of earlier runs of the client. launched: whether other clients may run at the same time; the part
    of a launched client on a device begins only after all tensors that the part receives have arrived.
    """

    process: str
    client: str
    number: int
    step: int
    begin_ns: int
    end_ns: int
    launched: bool = False


class ClientRuns:
    """The finished runs of the traced clients of a session."""

    def __init__(self, process: str, clients: Iterable[str]) -> None:
        self.ended: list[ClientRun] = []
        self._process = process
        self._clients = frozenset(clients)

    def add(self, client: str, number: int, step: int, begin_ns: int, *, launched: bool = False) -> None:
        """Record a run that began at ``begin_ns`` and ends now; runs of other clients are ignored."""
        if client in self._clients:
            end_ns = time.monotonic_ns()
            self.ended.append(ClientRun(self._process, client, number, step, begin_ns, end_ns, launched))


@dataclass(frozen=True)
class LinkSpan:
    """A transfer over one link, from the start of its latency, or of its turn on the link, to its arrival.

    nbytes: bytes of the tensor.
    """

    link: str
    key: str
    nbytes: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Timeline:
    """The spans of all devices, in order of time for each device, and the runs that the session recorded.

    A run that had begun before the recording has only its later spans. A run that had not ended before the end of the
    recording has spans but no entry in ``runs``.
    """

    spans: tuple[Span, ...]
    runs: tuple[ClientRun, ...]

    def between(self, begin_ns: int, end_ns: int) -> "Timeline":
        """Return the spans and runs that overlap the time from ``begin_ns`` to ``end_ns``."""
        return Timeline(
            tuple(span for span in self.spans if span.begin_ns <= end_ns and span.end_ns >= begin_ns),
            tuple(run for run in self.runs if run.begin_ns <= end_ns and run.end_ns >= begin_ns),
        )


@dataclass(frozen=True)
class RecordedPlan:
    """The plan of a recorded client on one device. graph: the graph of the plan, whose nodes name their layers."""

    client: str
    plan: DevicePlan
    graph: Graph


def spans_of(process: str, recorded: Sequence[RecordedPlan], raw_spans: Iterable[RawSpan]) -> list[Span]:
    """Return raw spans of one device as spans with names. recorded: the device's plans, in the order of their numbers.

    Raises SecurityError for spans that the plans cannot have produced, because spans from workers are not trusted.
    """
    spans = [_span(process, recorded, each) for each in raw_spans]
    for before, after in pairwise(at for span in spans for at in (span.begin_ns, span.end_ns)):
        if after < before:
            raise SecurityError(f"spans of {process} refused: {after} ns follows {before} ns, expected ascending times")
    return spans


def _span(process: str, recorded: Sequence[RecordedPlan], each: RawSpan) -> Span:
    if each.plan >= len(recorded):
        raise SecurityError(f"spans of {process} refused: plan {each.plan}, expected less than {len(recorded)}")
    of = recorded[each.plan]
    run = (process, of.plan.device, of.client, each.number, each.step, each.kind)
    times = (each.begin_ns, each.end_ns)
    if each.kind in _KINDS_WITHOUT_NODE:
        return Span(*run, each.kind, each.kind, "", *times)
    plan = of.plan
    count = len(plan.instructions)
    if each.position >= count:
        raise SecurityError(f"spans of {process} refused: instruction {each.position}, expected less than {count}")
    instruction = plan.instructions[each.position]
    kinds = _KINDS_OF.get(instruction.op, (COMPUTE,))
    if each.kind not in kinds:
        raise SecurityError(
            f"spans of {process} refused: {each.kind} of {instruction.node!r}, expected {' or '.join(kinds)}"
        )
    node = of.graph.nodes.get(instruction.node)
    layer = node.layer.name if node is not None and node.layer is not None else ""
    key, peer, nbytes = _transfer(plan, instruction)
    return Span(*run, instruction.node, instruction.op, layer, *times, key, peer, nbytes)


def _transfer(plan: DevicePlan, instruction: Instruction) -> tuple[str, str, int]:
    """Return key, peer device and bytes of a transfer, or empty values for any other instruction."""
    attributes = instruction.attributes
    match instruction.op:
        case "send":
            return attributes["key"], attributes["destination"], plan.slots[instruction.inputs[0]].spec.nbytes
        case "recv":
            return attributes["key"], attributes["source"], plan.slots[instruction.outputs[0]].spec.nbytes
    return "", "", 0


class LocalTrace:
    """An active trace. process: name of the process in the spans. runs: the client runs that the session records."""

    def __init__(self, process: str, runs: ClientRuns) -> None:
        self.runs = runs
        self._process = process
        self._plans: defaultdict[str, list[RecordedPlan]] = defaultdict(list)
        self._recorders: defaultdict[str, Recorder] = defaultdict(Recorder)
        self._executors: list[DeviceExecutor] = []

    def add(self, device: str, plan: RecordedPlan, executor: DeviceExecutor) -> None:
        """Begin to record a plan on one device."""
        executor.record(self._recorders[device], len(self._plans[device]))
        self._plans[device].append(plan)
        self._executors.append(executor)

    def stop(self) -> Timeline:
        """Stop recording and return the timeline."""
        for executor in self._executors:
            executor.record(None)
        found = [spans_of(self._process, plans, self._recorders[each].spans) for each, plans in self._plans.items()]
        return Timeline(tuple(chain.from_iterable(found)), tuple(self.runs.ended))
