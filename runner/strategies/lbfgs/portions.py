"""The assignment of portions of a batch to workers (Dean et al. 2012, section 4.2)."""

from collections import deque

from runner.strategies.replica import shares


class Portions:
    """The portions of one evaluation, numbered from 0; the assignment depends on the order of the calls alone.

    Every worker works through a range of neighbouring portions from the front. The range is the same in each
    evaluation, so that its examples may still be cached. A worker that has finished its range takes the last portion of
    the longest remaining range. If no portion is left, it repeats an unfinished one: of those with the fewest workers,
    the one that was given out first. A worker asks only after its portion is finished, so it never repeats its own.
    """

    def __init__(self, count: int, workers: int) -> None:
        self._waiting = [deque(range(*share)) for share in shares(count, workers)]
        self._busy: dict[int, int] = {}
        self._left = set(range(count))

    @property
    def complete(self) -> bool:
        """Whether every portion is finished."""
        return not self._left

    def is_open(self, portion: int) -> bool:
        """Return whether a portion is not finished yet."""
        return portion in self._left

    def give(self, worker: int) -> int | None:
        """Return the next portion for a free worker; None if all are finished."""
        portion = self._first_time(worker)
        if portion is None:
            portion = self._again()
        if portion is not None:
            self._busy[portion] = self._busy.get(portion, 0) + 1
        return portion

    def finish(self, portion: int) -> bool:
        """Mark a portion as finished; return whether it was open."""
        if not self.is_open(portion):
            return False
        self._left.remove(portion)
        del self._busy[portion]
        return True

    def _first_time(self, worker: int) -> int | None:
        if self._waiting[worker]:
            return self._waiting[worker].popleft()
        fullest = max(self._waiting, key=len)
        return fullest.pop() if fullest else None

    def _again(self) -> int | None:
        """Return the portion with the fewest workers; of several, the one given out first."""
        return min(self._busy, key=lambda portion: self._busy[portion], default=None)
