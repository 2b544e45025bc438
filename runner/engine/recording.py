"""What one device did when: the times an executor notes while it records, and how they travel to the master."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple, TypeVar

from runner.engine.transport.schema import Integer, ListOf, Record, Text, Violation
from runner.errors import ResourceError, SecurityError

INPUT, COMPUTE, SEND, RECEIVE, WAIT, DELAY = KINDS = ("input", "compute", "send", "receive", "wait", "delay")
"""Reading examples and what the master feeds; a kernel, or an assignment; saying that a tensor is there to be
read; looking at one that is there; until it is there; the wait of an emulated slow worker."""

MAX_PLANS = 2**16
"""Most plans of a device that are recorded together."""

MAX_SPANS = 2**20
"""Most spans of one device: as many as one document holds with room to spare."""

T = TypeVar("T")
Clock = Callable[[], int]


class RunOf(NamedTuple):
    """One run of a plan. plan: its number among those that are recorded. number: runs of it that had begun before."""

    plan: int
    number: int
    step: int


class Noted(NamedTuple):
    """One stretch of time. Times: ns of the recorder's clock.

    plan, number, step: as of :class:`RunOf`. position: of the instruction in the device's plan; 0 for what is done
    before.
    """

    plan: int
    number: int
    step: int
    position: int
    kind: str
    begin_ns: int
    end_ns: int


class Recorder:
    """Collects what one device does in the runs of some plans, in order.

    clock: nanoseconds; CLOCK_MONOTONIC if not given, which is one clock for all processes of a machine, so that their
    times need no alignment. Those of another host would have an offset, to be measured and taken off.
    """

    def __init__(self, clock: Clock = time.monotonic_ns) -> None:
        self.noted: list[Noted] = []
        self._clock = clock

    def timed(self, run: RunOf, position: int, kind: str, call: Callable[[], T]) -> T:
        """Call and note how long it took. Raises ResourceError beyond ``MAX_SPANS``."""
        begin = self._clock()
        result = call()
        end = self._clock()
        if len(self.noted) == MAX_SPANS:
            raise ResourceError(f"a trace holds at most {MAX_SPANS} spans of a device: record fewer steps")
        self.noted.append(Noted(*run, position, kind, begin, end))
        return result


_Column = ListOf(Integer(), MAX_SPANS)


@dataclass(frozen=True)
class _Columns:
    """The schema of a document of spans; ``kind`` counts in ``KINDS``."""

    plan: Annotated[tuple[int, ...], ListOf(Integer(high=MAX_PLANS - 1), MAX_SPANS)]
    number: Annotated[tuple[int, ...], _Column]
    step: Annotated[tuple[int, ...], _Column]
    position: Annotated[tuple[int, ...], _Column]
    kind: Annotated[tuple[int, ...], ListOf(Integer(high=len(KINDS) - 1), MAX_SPANS)]
    begin_ns: Annotated[tuple[int, ...], _Column]
    end_ns: Annotated[tuple[int, ...], _Column]

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(lengths.values())) > 1:
            raise Violation(f"columns of {lengths} values, expected as many in each")


_SCHEMA = Record(_Columns)
_PLANS = ListOf(Text(64), MAX_PLANS)


def read_plans(document: object) -> tuple[str, ...]:
    """The names of the plans to record, in the order of their numbers; raises SecurityError for anything else."""
    try:
        return _PLANS.read(document, "plans")
    except Violation as violation:
        raise SecurityError(f"trace refused: {violation}") from violation


def to_document(noted: Iterable[Noted]) -> dict[str, list[int]]:
    """Describe as plain data, a list per column."""
    rows = list(noted)
    columns = {name: [getattr(each, name) for each in rows] for name in Noted._fields}
    return columns | {"kind": [KINDS.index(each.kind) for each in rows]}


def from_document(document: object, source: str) -> list[Noted]:
    """Read what :func:`to_document` made; raises SecurityError, naming ``source``, for anything else."""
    try:
        columns = _SCHEMA.read(document, "spans")
    except Violation as violation:
        raise SecurityError(f"spans of {source} refused: {violation}") from violation
    kinds = [KINDS[kind] for kind in columns.kind]
    named = {field: getattr(columns, field) for field in Noted._fields} | {"kind": kinds}
    return [Noted(*row) for row in zip(*named.values(), strict=True)]
