"""Assignment of works to streams: independent branches of a step run concurrently, the rest in order.

The assignment is computed from the memory that works touch, before anything runs. Two works that touch the same bytes
keep their order if one of them writes; memory shared by values of disjoint lifetimes counts too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[int, int]
"""First address and end."""


@dataclass(frozen=True)
class Touched:
    """Memory that one work reads and writes."""

    reads: tuple[Span, ...]
    writes: tuple[Span, ...]


@dataclass(frozen=True)
class Turn:
    """The stream of one work, and the earlier works of other streams that it waits for."""

    stream: int
    after: tuple[int, ...]


def assign_streams(works: Sequence[Touched], streams: int) -> list[Turn]:
    """Return the turn of each work, in order; stream 0 has the first.

    A work goes to the stream of the latest work it depends on, if that is the last of its stream, so that chains stay
    together; otherwise to the stream that has been idle longest. Redundant waits are omitted.
    """
    turns: list[Turn] = []
    last = [-1] * streams
    reached: list[list[int]] = []
    for number, needed in enumerate(_needs(works)):
        stream = _stream_for(needed, turns, last)
        # For each stream, the latest work that is known to be done.
        seen = list(reached[last[stream]]) if last[stream] >= 0 else [-1] * streams
        after = []
        for each in sorted(needed, reverse=True):
            home = turns[each].stream
            if seen[home] < each:
                after.append(each)
                seen = [max(mine, its) for mine, its in zip(seen, reached[each], strict=True)]
        seen[stream] = number
        turns.append(Turn(stream, tuple(sorted(after))))
        reached.append(seen)
        last[stream] = number
    return turns


def _stream_for(needed: set[int], turns: Sequence[Turn], last: Sequence[int]) -> int:
    for each in sorted(needed, reverse=True):
        if last[turns[each].stream] == each:
            return turns[each].stream
    return min(range(len(last)), key=lambda stream: last[stream])


def _needs(works: Sequence[Touched]) -> list[set[int]]:
    """Return, for each work, the earlier works it depends on, at least one of each chain."""
    writers, readers = _Latest(), _Latest()
    needs = []
    for number, work in enumerate(works):
        needed = set(writers.touching(work.reads)) | set(writers.touching(work.writes))
        needed |= set(readers.touching(work.writes))
        for span in work.reads:
            readers.add(span, number)
        for span in work.writes:
            readers.forget(span)
            writers.put(span, number)
        needs.append(needed - {number})
    return needs


class _Latest:
    """Spans of memory and the works that touched them."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, int]] = []

    def touching(self, spans: Iterable[Span]) -> list[int]:
        return [who for begin, end in spans for low, high, who in self._spans if low < end and begin < high]

    def add(self, span: Span, who: int) -> None:
        if span[0] < span[1]:
            self._spans.append((*span, who))

    def forget(self, span: Span) -> None:
        """Remove a span."""
        begin, end = span
        kept = []
        for low, high, who in self._spans:
            if low >= end or high <= begin:
                kept.append((low, high, who))
                continue
            kept += [part for part in ((low, begin, who), (end, high, who)) if part[0] < part[1]]
        self._spans = kept

    def put(self, span: Span, who: int) -> None:
        self.forget(span)
        self.add(span, who)
