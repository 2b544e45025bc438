"""The spans of all devices on one clock: what each did, for which layer, and whom it waited for."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from runner.engine.graph import Graph
from runner.engine.plan import DevicePlan, Instruction
from runner.engine.recording import COMPUTE, INPUT, RECEIVE, SEND, WAIT, Noted
from runner.errors import SecurityError

_KINDS_OF = {"send": (SEND,), "recv": (WAIT, RECEIVE)}


@dataclass(frozen=True)
class Span:
    """What a device did from ``begin_ns`` to ``end_ns``, nanoseconds of CLOCK_MONOTONIC.

    process: that the device lives in. kind: one of ``recording.KINDS``; reading inputs is no node, and called so.
    layer: name stamped on the node, "" for none.
    key, peer, nbytes: of a transfer: its key, once a step, the device at its other end and the bytes of the tensor; ""
    and 0 for a computation.
    """

    process: str
    device: str
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
class StepTime:
    """From where the session began a step to where it had all answers. process: the session's."""

    process: str
    step: int
    begin_ns: int
    end_ns: int


class StepTimes:
    """The times of one client's steps, as a session notes them."""

    def __init__(self, process: str, client: str) -> None:
        self.noted: list[StepTime] = []
        self._process = process
        self._client = client

    def note(self, client: str, step: int, begin_ns: int) -> None:
        """A step that began then ends now; those of other clients are left out."""
        if client == self._client:
            self.noted.append(StepTime(self._process, step, begin_ns, time.monotonic_ns()))


@dataclass(frozen=True)
class Timeline:
    """Everything recorded: the spans of every device, in order, and the steps as the session saw them."""

    spans: tuple[Span, ...]
    steps: tuple[StepTime, ...]

    def within(self, steps: range) -> Timeline:
        """What is of some steps."""
        return Timeline(
            tuple(span for span in self.spans if span.step in steps),
            tuple(step for step in self.steps if step.step in steps),
        )


def spans_of(process: str, plan: DevicePlan, graph: Graph, noted: Iterable[Noted]) -> list[Span]:
    """Say what was recorded of a plan in its words; ``graph`` is the one it was made of, for the layers.

    Raises SecurityError for times that the plan cannot have led to: a worker said them.
    """
    spans = [_span(process, plan, graph, each) for each in noted]
    times = [time for span in spans for time in (span.begin_ns, span.end_ns)]
    for before, after in pairwise(times):
        if after < before:
            raise SecurityError(f"spans of {process} refused: {after} ns came after {before} ns, expected no fall")
    return spans


def _span(process: str, plan: DevicePlan, graph: Graph, each: Noted) -> Span:
    if each.kind == INPUT:
        return Span(process, plan.device, each.step, INPUT, INPUT, INPUT, "", each.begin_ns, each.end_ns)
    count = len(plan.instructions)
    if each.position >= count:
        raise SecurityError(f"spans of {process} refused: instruction {each.position}, expected one of {count}")
    instruction = plan.instructions[each.position]
    kinds = _KINDS_OF.get(instruction.op, (COMPUTE,))
    if each.kind not in kinds:
        raise SecurityError(
            f"spans of {process} refused: {each.kind} of {instruction.node!r}, expected {' or '.join(kinds)}"
        )
    key, peer, nbytes = _transfer(plan, instruction)
    node = graph.nodes.get(instruction.node)
    layer = node.layer.name if node is not None and node.layer is not None else ""
    return Span(
        process,
        plan.device,
        each.step,
        each.kind,
        instruction.node,
        instruction.op,
        layer,
        each.begin_ns,
        each.end_ns,
        key,
        peer,
        nbytes,
    )


def _transfer(plan: DevicePlan, instruction: Instruction) -> tuple[str, str, int]:
    """Key, other end and bytes of a transfer; nothing of anything else."""
    attributes = instruction.attributes
    match instruction.op:
        case "send":
            return attributes["key"], attributes["destination"], plan.slots[instruction.inputs[0]].spec.nbytes
        case "recv":
            return attributes["key"], attributes["source"], plan.slots[instruction.outputs[0]].spec.nbytes
    return "", "", 0
