"""What one device did when: the times an executor notes while it records, and how they travel to the master."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple, TypeVar

from runner.engine.transport.schema import Integer, ListOf, Record, Violation
from runner.errors import ResourceError, SecurityError

INPUT, COMPUTE, SEND, RECEIVE, WAIT = KINDS = ("input", "compute", "send", "receive", "wait")
"""Reading examples and what the master feeds; a kernel, or an assignment; saying that a tensor is there to be
read; looking at one that is there; until it is there."""

MAX_SPANS = 2**20
"""Most spans of one device: as many as one document holds with room to spare."""

T = TypeVar("T")
Clock = Callable[[], int]


class Noted(NamedTuple):
    """One stretch of time. Times: ns of the recorder's clock.

    position: of the instruction in the device's plan; 0 for the inputs of a step.
    """

    step: int
    position: int
    kind: str
    begin_ns: int
    end_ns: int


class Recorder:
    """Collects what one device does, in order.

    clock: nanoseconds; CLOCK_MONOTONIC if not given, which is one clock for all processes of a machine, so that their
    times need no alignment. Those of another host would have an offset, to be measured and taken off.
    """

    def __init__(self, clock: Clock = time.monotonic_ns) -> None:
        self.noted: list[Noted] = []
        self._clock = clock

    def timed(self, step: int, position: int, kind: str, call: Callable[[], T]) -> T:
        """Call and note how long it took. Raises ResourceError beyond ``MAX_SPANS``."""
        begin = self._clock()
        result = call()
        end = self._clock()
        if len(self.noted) == MAX_SPANS:
            raise ResourceError(f"a trace holds at most {MAX_SPANS} spans of a device: record fewer steps")
        self.noted.append(Noted(step, position, kind, begin, end))
        return result


def noted_input(recorder: Recorder | None, step: int, read: Callable[[], T]) -> T:
    """Read what a step is fed, and note how long it took where something records."""
    return read() if recorder is None else recorder.timed(step, 0, INPUT, read)


_Column = ListOf(Integer(), MAX_SPANS)


@dataclass(frozen=True)
class _Columns:
    """The schema of a document of spans; ``kind`` counts in ``KINDS``."""

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


def to_document(noted: Iterable[Noted]) -> dict[str, list[int]]:
    """Describe as plain data, a list per column."""
    rows = [(each.step, each.position, KINDS.index(each.kind), each.begin_ns, each.end_ns) for each in noted]
    columns = zip(*rows, strict=True) if rows else [()] * len(Noted._fields)
    return dict(zip(Noted._fields, map(list, columns), strict=True))


def from_document(document: object, source: str) -> list[Noted]:
    """Read what :func:`to_document` made; raises SecurityError, naming ``source``, for anything else."""
    try:
        columns = _SCHEMA.read(document, "spans")
    except Violation as violation:
        raise SecurityError(f"spans of {source} refused: {violation}") from violation
    kinds = [KINDS[kind] for kind in columns.kind]
    rows = zip(columns.step, columns.position, kinds, columns.begin_ns, columns.end_ns, strict=True)
    return [Noted(*row) for row in rows]
