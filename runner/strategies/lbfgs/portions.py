"""Who computes which portion of a batch: handed out one by one, the last ones again (Dean et al. 2012, section 4.2)."""

from __future__ import annotations

from collections import deque

from runner.strategies.replica import shares


class Portions:
    """The portions of one evaluation, from 0. What is given out follows from who asked and who finished, in order.

    Every worker has a range of neighbouring portions that it works through from the front: the same in each
    evaluation, whose examples it may still have at hand. One that is through takes the last portion of the range with
    most left. When none is left, it does one again that others are still busy with: of those that fewest are busy with
    the one given out first. A worker is free when what it did is finished, so it never does twice what it does.
    """

    def __init__(self, count: int, workers: int) -> None:
        self._waiting = [deque(range(*share)) for share in shares(count, workers)]
        self._busy: dict[int, int] = {}
        self._left = set(range(count))

    @property
    def complete(self) -> bool:
        """Whether each portion has been finished by somebody."""
        return not self._left

    def is_open(self, portion: int) -> bool:
        """Whether nobody has finished a portion."""
        return portion in self._left

    def give(self, worker: int) -> int | None:
        """The next portion for a worker that is free; None where all are finished."""
        portion = self._first_time(worker)
        if portion is None:
            portion = self._again()
        if portion is not None:
            self._busy[portion] = self._busy.get(portion, 0) + 1
        return portion

    def finish(self, portion: int) -> bool:
        """Note that somebody has finished a portion; return whether it is the first to."""
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
        """The first given out of those with fewest copies under way."""
        return min(self._busy, key=lambda portion: self._busy[portion], default=None)
