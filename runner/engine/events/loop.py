"""A simulation of activities on a virtual clock.

An activity starts when the activities before it have ended and its unit, if it has one, is free. It takes its delay,
and then moves its amount over its links. A computation is a delay on a unit; a transfer is a delay (the latency) and
then an amount (the bytes). Links are shared fairly among their flows; see :mod:`runner.engine.events.fair_shares`. The
result is a pure function of the activities, in the order in which they were added.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from runner.engine.events.advance import advance
from runner.engine.events.state import (
    ACTIVITY,
    COUNTERS,
    EDGE,
    ENDED,
    EVENT,
    HOP,
    LINK,
    NONE,
    UNIT,
    WATCHED_ENDS,
    WORK_ROWS,
    State,
)

Floats = NDArray[np.float64]


class EventLoop:
    """A simulation to which activities can be added before and between runs."""

    def __init__(self, capacities: Sequence[float], units: int) -> None:
        """Create links with these capacities (amount per second, positive and finite) and ``units`` free units.

        Raises ValueError for another capacity.
        """
        for number, capacity in enumerate(capacities):
            if not 0.0 < capacity < np.inf:
                raise ValueError(f"link {number}: capacity {capacity}, expected a positive finite amount per second")
        self._links = np.zeros(len(capacities), LINK)
        self._links["capacity"], self._links["first"] = capacities, NONE
        self._units = np.zeros(units, UNIT)
        self._units["running"] = self._units["queue"] = NONE
        self._counters = np.zeros(1, COUNTERS)
        self._activities = np.zeros(0, ACTIVITY)
        self._edges = np.zeros(0, EDGE)
        self._hops = np.zeros(0, HOP)
        self._queue = np.zeros(0, EVENT)
        self._rows: list[tuple[float, float, float, int, int, int, bool]] = []
        self._new_hops: list[int] = []
        self._new_edges: list[tuple[int, int]] = []

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

        delay_s: seconds before the amount moves. amount: what moves over every one of ``links``, at the same rate; an
        amount without links takes no time. weight: the number of equal activities for which this one stands; each of
        them moves ``amount``. unit: the unit that runs the activity from its start to its end, one at a time. rank: a
        unit starts the ready activity of lowest rank, of equal ranks that with the lowest number. after: activities
        that must end first, each named once; they can be added later, before the next run. watched: whether ``run``
        returns when the activity has ended.
        """
        number = len(self)
        self._rows.append((delay_s, amount, rank, weight, unit, len(links), watched))
        self._new_hops.extend(links)
        self._new_edges.extend((before, number) for before in after)
        return number

    def __len__(self) -> int:
        return len(self._activities) + len(self._rows)

    def run(self) -> list[int]:
        """Process events until watched activities end, and return these; [] if nothing is left to do."""
        first = self._take_rows()
        state = self._state()
        advance(state, first)
        ended = state.work[WATCHED_ENDS]
        return sorted(ended[1 : ended[0] + 1].tolist())

    def require_ended(self) -> None:
        """Raise ValueError with the number of the first activity that has not ended, because activities wait for each
        other."""
        left = np.flatnonzero(self._activities["state"] != ENDED)
        if len(left):
            raise ValueError(f"{len(left)} activities never end, the first is activity {left[0]}: they form a cycle")

    @property
    def now(self) -> float:
        """Seconds on the virtual clock."""
        return float(self._counters["now"][0])

    @property
    def events(self) -> int:
        """The number of starts and ends of activities so far."""
        return int(self._counters["events"][0])

    @property
    def starts(self) -> Floats:
        """(activities,): start of each activity in seconds; nan before its start."""
        return np.array(self._activities["start"])

    @property
    def ends(self) -> Floats:
        """(activities,): end of each activity in seconds; nan before its end."""
        return np.array(self._activities["end"])

    @property
    def busy_s(self) -> Floats:
        """(units,): seconds for which each unit has run activities that have ended."""
        return np.array(self._units["busy_s"])

    @property
    def carried(self) -> Floats:
        """(links,): the amount that each link has moved for activities that have ended."""
        return np.array(self._links["carried"])

    @property
    def peaks(self) -> Floats:
        """(links,): the largest rate of each link so far, amount per second."""
        return np.array(self._links["peak"])

    def _take_rows(self) -> int:
        """Append the new activities to the arrays; return the number of the first."""
        first, new = len(self._activities), np.zeros(len(self._rows), ACTIVITY)
        for name in ("start", "end"):
            new[name] = np.nan
        for name in ("place", "child", "sibling", "first_edge"):
            new[name] = NONE
        if self._rows:
            columns = np.array(self._rows)
            for name, values in zip(
                ("delay_s", "amount", "rank", "weight", "unit", "hops", "watched"), columns.T, strict=True
            ):
                new[name] = values
        new["first_hop"] = len(self._hops) + np.cumsum(new["hops"]) - new["hops"]
        hops = np.zeros(len(self._new_hops), HOP)
        hops["link"] = self._new_hops
        hops["activity"] = first + np.repeat(np.arange(len(new)), new["hops"])
        self._activities = np.concatenate([self._activities, new])
        self._hops = np.concatenate([self._hops, hops])
        self._queue = np.concatenate([self._queue, np.zeros(len(new), EVENT)])
        pairs = np.array(self._new_edges, np.int64).reshape(-1, 2)
        held = len(self._edges)
        self._edges = np.concatenate([self._edges, np.zeros(len(pairs), EDGE)])
        _add_edges(self._activities, self._edges, held, pairs)
        self._rows, self._new_hops, self._new_edges = [], [], []
        return first

    def _state(self) -> State:
        longest = 1 + max(len(self._activities), len(self._links), len(self._units))
        return State(
            self._activities,
            self._edges,
            self._hops,
            self._links,
            self._units,
            self._queue,
            self._counters,
            np.zeros((len(WORK_ROWS), longest), np.int64),
        )


@njit(cache=True)
def _add_edges(activities: Any, edges: Any, held: int, pairs: NDArray[np.int64]) -> None:
    """Add pairs (before, dependent) to the edges, after ``held`` old ones, unless ``before`` has already ended."""
    for k in range(len(pairs)):
        before, dependent = pairs[k]
        if activities[before].state != ENDED:
            activities[dependent].missing += 1
            edges[held + k].dependent, edges[held + k].following = dependent, activities[before].first_edge
            activities[before].first_edge = held + k
