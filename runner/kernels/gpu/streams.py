"""Which stream does what: independent branches of a step at the same time, the rest in order.

Decided from the memory that works touch, before anything runs. Two works that touch the same bytes, at least one of
them writing, keep their order; memory that values of disjoint lifetimes share counts like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[int, int]
"""First address, and the one behind the last."""


@dataclass(frozen=True)
class Touched:
    """Memory that one work reads and writes."""

    reads: tuple[Span, ...]
    writes: tuple[Span, ...]


@dataclass(frozen=True)
class Turn:
    """One work: on which stream, after which earlier works of other streams."""

    stream: int
    after: tuple[int, ...]


def assign_streams(works: Sequence[Touched], streams: int) -> list[Turn]:
    """Return the turn of each work, in order; stream 0 has the first.

    A work goes where the latest of those it waits for was the last, so that chains stay together; a branch goes to the
    stream that has been idle the longest. It waits for others only as far as what it waits for already does not.
    """
    turns: list[Turn] = []
    last = [-1] * streams
    reached: list[list[int]] = []
    for number, needed in enumerate(_needs(works)):
        stream = _stream_for(needed, turns, last)
        # What the stream has seen of each stream: the number of the latest work that is surely done.
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
    """For each work the earlier ones that it has to come after, at least one of each chain of them."""
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
    """Spans of memory and who touched them."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, int]] = []

    def touching(self, spans: Iterable[Span]) -> list[int]:
        return [who for begin, end in spans for low, high, who in self._spans if low < end and begin < high]

    def add(self, span: Span, who: int) -> None:
        if span[0] < span[1]:
            self._spans.append((*span, who))

    def forget(self, span: Span) -> None:
        """Nobody has touched this span any more."""
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
