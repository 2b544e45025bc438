"""A simulation of activities on a virtual clock.

An activity starts when the activities before it have ended and its unit, if it has one, is free. It takes its delay,
and then moves its amount over its links. A computation is a delay on a unit; a transfer is a delay (the latency) and
then an amount (the bytes). Links are shared fairly among their flows; see :mod:`runner.engine.events.fair_shares`. The
result is a pure function of the activities, in the order in which they were added.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.events.advance import advance
from runner.engine.events.state import ENDED, NONE, WATCHED_ENDS
from runner.engine.events.storage import Block, Storage, block_of, joined, waiting

Floats = NDArray[np.float64]

_FIRST = np.zeros(1, np.int64)


class EventLoop:
    """A simulation to which activities can be added before and between runs."""

    def __init__(self, capacities: Sequence[float], units: int) -> None:
        """Create links with these capacities (amount per second, positive and finite) and ``units`` free units.

        Raises ValueError for another capacity.
        """
        for number, capacity in enumerate(capacities):
            if not 0.0 < capacity < np.inf:
                raise ValueError(f"link {number}: capacity {capacity}, expected a positive finite amount per second")
        self._storage = Storage(capacities, units)
        # Blocks are collected and stored together, because a call of a compiled function takes as long as many rows.
        self._added: list[Block] = []
        self._ranks: list[float] = []
        self._length = 0

    def add(
        self,
        delay_s: float = 0.0,
        *,
        amount: float = 0.0,
        links: Sequence[int] = (),
        weight: int = 1,
        unit: int = NONE,
        rank: float = 0.0,
        after: Sequence[int] = (),
        watched: bool = False,
    ) -> int:
        """Add an activity and return its number; the numbers count from 0.

        delay_s: seconds before the amount moves. amount: an amount, such as bytes, that moves over each of ``links`` at
        the same rate; without links, it takes no time. weight: the number of equal activities that this activity
        represents; each moves ``amount``. unit: the unit that runs the activity from its start to its end, one at a
        time. rank: a unit starts its ready activity with the lowest rank or, of equal ranks, the lowest number. after:
        earlier activities that must end first, each named once. watched: whether ``run`` returns at its end.
        """
        return self.add_block(block_of([(delay_s, amount, weight, unit, watched)], [links], [()]), rank, after, _FIRST)

    def add_block(
        self, block: Block, rank: float = 0.0, after: Sequence[int] = (), begins: NDArray[np.int64] = _FIRST
    ) -> int:
        """Add the activities of a block, which get consecutive numbers, and return the first number.

        rank: rank of all activities. after: numbers of earlier activities, each named once. begins: positions in the
        block, in ascending order, of the activities that also wait for those in ``after``.
        """
        number = self._length
        if after:
            block = waiting(block, [each - number for each in after], begins)
        self._added.append(block)
        self._ranks.append(rank)
        self._length += len(block.activities)
        return number

    def __len__(self) -> int:
        return self._length

    def run(self) -> list[int]:
        """Process events until watched activities end, and return these; [] if nothing is left to do."""
        self._store()
        state = self._storage.state
        advance(state)
        ended, dropped = state.work[WATCHED_ENDS], self._storage.dropped
        return sorted([index + dropped for index in ended[1 : ended[0] + 1].tolist()])

    def _store(self) -> None:
        """Store the activities that were added since the last call."""
        if self._added:
            self._storage.append(joined(self._added, self._ranks))
            self._added, self._ranks = [], []

    @property
    def idle(self) -> bool:
        """Whether all activities have ended."""
        return bool((self._of_activities("state") == ENDED).all())

    def forget_before(self, number: int) -> None:
        """Allow the loop to drop ended activities before ``number``. Without such calls, all activities are kept."""
        self._storage.kept_from = number

    def times(self, first: int, end: int) -> tuple[Floats, Floats]:
        """Return start and end in seconds of the activities from ``first`` to ``end`` - 1; nan for future times."""
        self._store()
        own = slice(first - self._storage.dropped, end - self._storage.dropped)
        return self._of_activities("start")[own].copy(), self._of_activities("end")[own].copy()

    def restart(self) -> None:
        """Set the clock and the totals of units and links to 0, so that later times do not depend on earlier ones.

        All activities must have ended.
        """
        state = self._storage.state
        self.forget_before(len(self))
        self._storage.drop()
        state.counters["now"] = 0.0
        state.units["busy_s"] = 0.0
        state.links["carried"] = 0.0

    def require_ended(self) -> None:
        """Raise ValueError if activities can never end because they wait for one another."""
        left = np.flatnonzero(self._of_activities("state") != ENDED)
        if len(left):
            first = left[0] + self._storage.dropped
            raise ValueError(f"{len(left)} activities never end, the first is activity {first}: they form a cycle")

    @property
    def now(self) -> float:
        """Seconds on the virtual clock."""
        return float(self._storage.state.counters["now"][0])

    @property
    def busy_s(self) -> Floats:
        """(units,): seconds for which each unit has run activities that have ended."""
        return np.array(self._storage.state.units["busy_s"])

    @property
    def carried(self) -> Floats:
        """(links,): the amount that each link has moved for activities that have ended."""
        return np.array(self._storage.state.links["carried"])

    def _of_activities(self, name: str) -> NDArray[Any]:
        self._store()
        state = self._storage.state
        return state.activities[name][: state.counters[0]["activities"]]
