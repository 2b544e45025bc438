"""Recording of the times of an executor's instructions, and the document that carries these times to the master."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from runner.errors import ResourceError
from runner.system.schema import MAX_INTEGER, Integer, ListOf, Record, Text, Violation, read_untrusted

INPUT, COMPUTE, SEND, RECEIVE, WAIT, DELAY = KINDS = ("input", "compute", "send", "receive", "wait", "delay")
"""Kinds of spans: reading inputs; running a kernel or an assignment; sending a tensor; checking or copying a received
tensor; waiting for a tensor; delaying a step to emulate a slow worker."""

MAX_PLANS = 2**16  # largest number of plans of one device in a trace
MAX_SPANS = 2**20  # largest number of spans of one device in a trace, all of which fit into one document

T = TypeVar("T")


class PlanRun(NamedTuple):
    """One run of a plan. plan: index of the plan in the trace. number: number of earlier runs of the plan."""

    plan: int
    number: int
    step: int


class RawSpan(NamedTuple):
    """One measured interval, in nanoseconds of the recorder's clock.

    plan, number, step: see :class:`PlanRun`. position: index of the instruction in the plan, or 0 for work before the
    first instruction.
    """

    plan: int
    number: int
    step: int
    position: int
    kind: str
    begin_ns: int
    end_ns: int


class Recorder:
    """A recorder of one device's spans. clock: returns ns; by default, a clock that all processes of a host share."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.spans: list[RawSpan] = []
        self._clock = clock

    def timed(self, run: PlanRun, position: int, kind: str, call: Callable[[], T]) -> T:
        """Call a function and record its span. Raises ResourceError if there are ``MAX_SPANS`` spans already."""
        begin = self._clock()
        result = call()
        end = self._clock()
        if len(self.spans) == MAX_SPANS:
            raise ResourceError(f"a trace holds at most {MAX_SPANS} spans per device: record fewer steps")
        self.spans.append(RawSpan(*run, position, kind, begin, end))
        return result


def _of_columns(**columns: Sequence[int]) -> list[RawSpan]:
    """Return spans, given one column for each field; ``kind`` holds indices into ``KINDS``."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise Violation(f"column lengths {lengths}, expected columns of equal length")
    named = columns | {"kind": [KINDS[kind] for kind in columns["kind"]]}
    return [RawSpan(*row) for row in zip(*named.values(), strict=True)]


_LARGEST = {"plan": MAX_PLANS - 1, "kind": len(KINDS) - 1}
_COLUMNS = {name: ListOf(Integer(high=_LARGEST.get(name, MAX_INTEGER)), MAX_SPANS) for name in RawSpan._fields}
_SCHEMA = Record(_of_columns, **_COLUMNS)
_PLANS = ListOf(Text(64), MAX_PLANS)


def read_plans(document: object) -> tuple[str, ...]:
    """Read the names of the plans to record, in the order of their numbers; raises SecurityError if malformed."""
    plans: tuple[str, ...] = read_untrusted(_PLANS, document, "plans of a trace")
    return plans


def to_document(spans: Iterable[RawSpan]) -> dict[str, list[int]]:
    """Return spans as plain data: one list for each field of :class:`RawSpan`."""
    rows = list(spans)
    columns = {name: [getattr(each, name) for each in rows] for name in RawSpan._fields}
    return columns | {"kind": [KINDS.index(each.kind) for each in rows]}


def from_document(document: object, source: str) -> list[RawSpan]:
    """Return the spans in a document of :func:`to_document`; raises SecurityError naming ``source`` if malformed."""
    spans: list[RawSpan] = read_untrusted(_SCHEMA, document, f"spans of {source}")
    return spans
