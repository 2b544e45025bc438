"""The arrays of a simulation. Compiled functions read and write these arrays; see :mod:`runner.engine.events.loop`."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

NONE = -1
"""The end of a linked list, and the index of a missing unit."""

WAITING, DELAYED, FLOWING, ENDED = range(4)
"""States of an activity: before its start, in its delay, moving its amount over its links, and after its end."""

_NUMBER, _INDEX = "f8", "i8"

ACTIVITY = np.dtype(
    [
        *((name, _NUMBER) for name in ("delay_s", "amount", "rank", "start", "end", "left", "rate", "since", "share")),
        *((name, _INDEX) for name in ("weight", "unit", "first_hop", "hops", "missing", "first_edge", "state")),
        *((name, _INDEX) for name in ("event", "child", "sibling", "seen", "renewed", "watched", "first_wait")),
        *((name, _INDEX) for name in ("bottleneck", "filled")),
    ]
)
"""One activity. delay_s, amount, weight, unit, rank: see :meth:`~runner.engine.events.loop.EventLoop.add`.

start, end: seconds. left: the amount that remained at time ``since``; rate: amount per second from then on. first_hop,
hops: first of its elements of :data:`HOP`, and their number. missing: number of activities that must end first.
first_edge: its first element of :data:`EDGE`. event: index of its event in the queue, or ``NONE``. child, sibling:
its first child and next sibling in the heap of its unit. seen: number of the last division that included it, negative
once that division has computed its share. renewed: number of the last division that changed its rate. watched: 1 if the
loop returns when it ends. first_wait: index of the first element of :data:`EDGE` whose dependent it is. bottleneck: the
full link that limits its rate, ``NONE`` if it has no rate yet. share, filled: its next rate and bottleneck.
"""

EDGE = np.dtype([("dependent", _INDEX), ("following", _INDEX)])
"""An element of a linked list: ``dependent`` waits for the activity that owns the list."""

HOP = np.dtype([("link", _INDEX), ("activity", _INDEX), ("before", _INDEX), ("after", _INDEX)])
"""A link of an activity. before, after: neighbours in the list of flows of the link."""

LINK = np.dtype(
    [
        *((name, _NUMBER) for name in ("capacity", "used", "free", "level", "carried")),
        *((name, _INDEX) for name in ("first", "limits", "unfixed", "seen", "divided", "touched")),
    ]
)
"""A link. capacity: amount per second. first: first element of its list of flows in ``hops``.

used: sum of the rates of its flows. limits: number of flows whose bottleneck it is. free, unfixed: the capacity that a
division has not assigned yet, and the weight of the collected flows without a share. level: the share at which the link
became full in that division, or infinity. carried: amount of all ended flows. seen, divided: numbers of the last
divisions that collected the link, and all its flows. touched: 1 if its flows have changed at this instant.
"""

UNIT = np.dtype([("running", _INDEX), ("queue", _INDEX), ("busy_s", _NUMBER), ("touched", _INDEX)])
"""A unit. running: its activity, or ``NONE``. queue: root of the heap of its ready activities. touched: 1 if its queue
or its activity has changed at this instant."""

EVENT = np.dtype([("time", _NUMBER), ("activity", _INDEX)])
"""The predicted end of a delay or of a flow, an element of a binary heap by time and activity."""

COUNTERS = np.dtype(
    [
        ("now", _NUMBER),
        *((name, _INDEX) for name in ("queued", "divisions", "activities", "edges", "hops", "considered")),
    ]
)
"""now: seconds. queued: number of events in the queue. divisions: number of divisions of links.

activities, edges, hops: the used lengths of these arrays, which have spare capacity. considered: the number of
activities that the last run has seen; the others are new.
"""

TOUCHED_LINKS, TOUCHED_UNITS, CONNECTED_LINKS, CONNECTED_FLOWS, BOTTLENECKS, WATCHED_ENDS = WORK_ROWS = range(6)
"""Rows of the working memory. The first element of a row is the number of the elements that follow."""


class State(NamedTuple):
    """All arrays of a simulation. work: (6, n), the working memory with its rows :data:`WORK_ROWS`.

    Activities, edges, hops and the queue of events have spare capacity. n is greater than the number of links, the
    number of units and the capacity for activities.
    """

    activities: NDArray[Any]
    edges: NDArray[Any]
    hops: NDArray[Any]
    links: NDArray[Any]
    units: NDArray[Any]
    queue: NDArray[Any]
    counters: NDArray[Any]
    work: NDArray[np.int64]


@njit(cache=True)
def append(row: NDArray[np.int64], value: int) -> None:
    """Append an index to a row of the working memory."""
    row[0] += 1
    row[row[0]] = value
