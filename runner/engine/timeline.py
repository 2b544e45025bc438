"""The spans of all devices on one clock: what each did, for which layer, and whom it waited for.

Clients run one by one or, launched, several at once. Every run of a client has a number, which its parts on all devices
and the session share: so a send finds its receive, and parts the launch they are of.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from runner.engine.graph import Graph
from runner.engine.plan import DevicePlan, Instruction
from runner.engine.recording import COMPUTE, DELAY, INPUT, RECEIVE, SEND, WAIT, Noted
from runner.errors import SecurityError

_KINDS_OF = {"send": (SEND,), "recv": (WAIT, RECEIVE)}
_OF_NO_NODE = (INPUT, DELAY)


@dataclass(frozen=True)
class Span:
    """What a device did from ``begin_ns`` to ``end_ns``, nanoseconds of CLOCK_MONOTONIC.

    process: that the device lives in. client, number, step: what was run: a client, how many of its runs had begun
    before, and the step that it was given, which is the client's own. kind: one of ``recording.KINDS``; reading inputs
    and a delay are no nodes, and called so. layer: name stamped on the node, "" for none.
    key, peer, nbytes: of a transfer: its key, once a run, the device at its other end and the bytes of the tensor; ""
    and 0 for a computation.
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
        """How long it took."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class ClientRun:
    """From where the session began a run of a client to where it had all answers. process: the session's.

    launched: beside others, so that no part begins before all that it receives is there.
    """

    process: str
    client: str
    number: int
    step: int
    begin_ns: int
    end_ns: int
    launched: bool = False


class ClientRuns:
    """The runs of some clients, as a session notes them."""

    def __init__(self, process: str, clients: Iterable[str]) -> None:
        self.noted: list[ClientRun] = []
        self._process = process
        self._clients = frozenset(clients)

    def note(self, client: str, number: int, step: int, begin_ns: int, *, launched: bool = False) -> None:
        """A run that began then ends now; those of other clients are left out."""
        if client in self._clients:
            self.noted.append(
                ClientRun(self._process, client, number, step, begin_ns, time.monotonic_ns(), launched=launched)
            )


@dataclass(frozen=True)
class Timeline:
    """Everything recorded: the spans of every device, in order, and the runs as the session saw them.

    A run that was under way as the recording began has spans from there on alone; of one that was as it ended the
    session has no end, and no run.
    """

    spans: tuple[Span, ...]
    runs: tuple[ClientRun, ...]

    def between(self, begin_ns: int, end_ns: int) -> Timeline:
        """What was under way at some time from ``begin_ns`` to ``end_ns``."""
        return Timeline(
            tuple(span for span in self.spans if span.begin_ns <= end_ns and span.end_ns >= begin_ns),
            tuple(run for run in self.runs if run.begin_ns <= end_ns and run.end_ns >= begin_ns),
        )


@dataclass(frozen=True)
class RecordedPlan:
    """A device's part of a client of which runs were recorded. graph: the one it was made of, for the layers."""

    client: str
    plan: DevicePlan
    graph: Graph


def spans_of(process: str, recorded: Sequence[RecordedPlan], noted: Iterable[Noted]) -> list[Span]:
    """Say what was noted on one device in the words of its plans. recorded: in the order of their numbers.

    Raises SecurityError for times that the plans cannot have led to: a worker said them.
    """
    spans = [_span(process, recorded, each) for each in noted]
    times = [time for span in spans for time in (span.begin_ns, span.end_ns)]
    for before, after in pairwise(times):
        if after < before:
            raise SecurityError(f"spans of {process} refused: {after} ns came after {before} ns, expected no fall")
    return spans


def _span(process: str, recorded: Sequence[RecordedPlan], each: Noted) -> Span:
    if each.plan >= len(recorded):
        raise SecurityError(f"spans of {process} refused: plan {each.plan}, expected one of {len(recorded)}")
    of = recorded[each.plan]
    run = (process, of.plan.device, of.client, each.number, each.step, each.kind)
    times = (each.begin_ns, each.end_ns)
    if each.kind in _OF_NO_NODE:
        return Span(*run, each.kind, each.kind, "", *times)
    plan = of.plan
    count = len(plan.instructions)
    if each.position >= count:
        raise SecurityError(f"spans of {process} refused: instruction {each.position}, expected one of {count}")
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
    """Key, other end and bytes of a transfer; nothing of anything else."""
    attributes = instruction.attributes
    match instruction.op:
        case "send":
            return attributes["key"], attributes["destination"], plan.slots[instruction.inputs[0]].spec.nbytes
        case "recv":
            return attributes["key"], attributes["source"], plan.slots[instruction.outputs[0]].spec.nbytes
    return "", "", 0
