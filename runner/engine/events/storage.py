"""The growth of the arrays of a simulation: blocks of activities are appended, and ended activities can be dropped.

Arrays double when they are full, so that adding n activities takes O(n) time for any number of blocks.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from runner.engine.events.state import ACTIVITY, COUNTERS, EDGE, ENDED, EVENT, HOP, LINK, NONE, UNIT, WORK_ROWS, State

_REFERENCES = {
    "activities": {"activities": ("child", "sibling"), "edges": ("dependent",), "hops": ("activity",)}
    | {"queue": ("activity",), "units": ("running", "queue")},
    "edges": {"activities": ("first_edge", "first_wait"), "edges": ("following",)},
    "hops": {"activities": ("first_hop",), "hops": ("before", "after"), "links": ("first",)},
}
"""Array -> the fields of all arrays that hold indices into this array."""


class Block(NamedTuple):
    """Activities that are added together.

    activities: (n,) of ``ACTIVITY``. links: (h,), the links of all activities, in order. waits: (m, 2), pairs
    (before, dependent) in the order of the dependents: ``before`` must end first. Both are positions in the block;
    negative positions are those of the activities that were added before the block, with -1 for the last of them.
    """

    activities: NDArray[Any]
    links: NDArray[np.int64]
    waits: NDArray[np.int64]


def block_of(
    columns: Sequence[tuple[float, float, int, int, bool]],
    links: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
) -> Block:
    """Return a block. columns: delay_s, amount, weight, unit and watched of each activity, as in ``EventLoop.add``.

    links: the links of each activity. after: for each activity, the positions of the activities that must end first.
    """
    activities = np.zeros(len(columns), ACTIVITY)
    for name, values in zip(
        ("delay_s", "amount", "weight", "unit", "watched"), zip(*columns, strict=True), strict=True
    ):
        activities[name] = values
    activities["hops"] = [len(each) for each in links]
    for name in ("start", "end"):
        activities[name] = np.nan
    for name in ("event", "child", "sibling", "first_edge", "bottleneck"):
        activities[name] = NONE
    waits = [(before, number) for number, each in enumerate(after) for before in each]
    flat = [link for each in links for link in each]
    return Block(activities, np.array(flat, np.int64), _pairs(waits))


def waiting(block: Block, before: Sequence[int], begins: NDArray[np.int64]) -> Block:
    """Return a block whose activities ``begins`` also wait for those at the (negative) positions ``before``."""
    added = _pairs([(each, dependent) for dependent in begins.tolist() for each in before])
    waits = np.concatenate([block.waits, added])
    return block._replace(waits=waits[np.argsort(waits[:, 1], kind="stable")])


def joined(blocks: Sequence[Block], ranks: Sequence[float]) -> Block:
    """Return one block with the activities of several blocks, in order. ranks: rank of the activities of each block."""
    counts = [len(each.activities) for each in blocks]
    # NumPy joins arrays of integers many times faster than arrays of records.
    activities = np.concatenate([each.activities.view(np.int64) for each in blocks]).view(ACTIVITY)
    activities["rank"] = np.repeat(ranks, counts)
    waits = np.concatenate([each.waits for each in blocks])
    firsts = np.cumsum(counts) - counts
    waits += np.repeat(firsts, [len(each.waits) for each in blocks])[:, np.newaxis]
    return Block(activities, np.concatenate([each.links for each in blocks]), waits)


def _pairs(values: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    return np.array(values, np.int64).reshape(-1, 2)


class Storage:
    """The arrays of a simulation.

    dropped: number of activities that are no longer in the arrays. kept_from: number of the first activity that must
    not be dropped.
    """

    def __init__(self, capacities: Sequence[float], units: int) -> None:
        self.dropped = self.kept_from = 0
        links, unit_rows = np.zeros(len(capacities), LINK), np.zeros(units, UNIT)
        links["capacity"], links["first"] = capacities, NONE
        unit_rows["running"] = unit_rows["queue"] = NONE
        self.state = State(
            np.zeros(0, ACTIVITY),
            np.zeros(0, EDGE),
            np.zeros(0, HOP),
            links,
            unit_rows,
            np.zeros(0, EVENT),
            np.zeros(1, COUNTERS),
            np.zeros((len(WORK_ROWS), 1 + max(len(links), units)), np.int64),
        )

    def append(self, block: Block) -> None:
        """Append a block."""
        if not insert(self.state, block):
            self.drop()
            self._grow({"activities": len(block.activities), "edges": len(block.waits), "hops": len(block.links)})
            insert(self.state, block)

    def drop(self) -> None:
        """Remove the activities before the first that is still needed, if they are at least half of all activities."""
        state, counters = self.state, self.state.counters[0]
        used = {name: int(counters[name]) for name in _REFERENCES}
        live = np.flatnonzero(state.activities["state"][: used["activities"]] != ENDED)
        first = min(int(live[0]) if len(live) else used["activities"], self.kept_from - self.dropped)
        if 2 * first < used["activities"]:
            return
        gone = used
        if first < used["activities"]:
            row = state.activities[first]
            gone = {"activities": first, "edges": int(row["first_wait"]), "hops": int(row["first_hop"])}
        for name, count in gone.items():
            array, left = getattr(state, name), used[name] - count
            array[:left] = array[count : used[name]]
            counters[name] = left
            for holder, fields in _REFERENCES[name].items():
                for field in fields:
                    column = getattr(state, holder)[field]
                    column[column != NONE] -= count
        counters["considered"] -= first
        self.dropped += first

    def _grow(self, needed: dict[str, int]) -> None:
        """Double the arrays that lack room for more rows. needed: name of an array -> number of additional rows."""
        grown: dict[str, NDArray[Any]] = {}
        for name, count in needed.items():
            array, used = getattr(self.state, name), int(self.state.counters[0][name])
            if used + count > len(array):
                grown[name] = _longer(array, max(2 * len(array), used + count))
        if "activities" in grown:
            length = len(grown["activities"])
            grown["queue"] = _longer(self.state.queue, length)
            if 1 + length > self.state.work.shape[1]:
                # Between runs, no row of the working memory holds anything that the next run reads.
                grown["work"] = np.zeros((len(WORK_ROWS), 1 + length), np.int64)
        self.state = self.state._replace(**grown)


def _longer(array: NDArray[Any], length: int) -> NDArray[Any]:
    return np.concatenate([array, np.zeros(length - len(array), array.dtype)])


@njit(cache=True)
def insert(state: State, block: Block) -> bool:
    """Append a block; return False, without a change, if an array lacks room."""
    counters = state.counters[0]
    if (
        counters.activities + len(block.activities) > len(state.activities)
        or counters.edges + len(block.waits) > len(state.edges)
        or counters.hops + len(block.links) > len(state.hops)
    ):
        return False
    first, hop, wait = counters.activities, counters.hops, 0
    for k in range(len(block.activities)):
        state.activities[first + k] = block.activities[k]
    for k in range(len(block.activities)):
        each = state.activities[first + k]
        each.first_hop, each.first_wait = hop, counters.edges
        for _ in range(each.hops):
            state.hops[hop].link, state.hops[hop].activity = block.links[hop - counters.hops], first + k
            hop += 1
        while wait < len(block.waits) and block.waits[wait, 1] == k:
            _wait_for(state, first + block.waits[wait, 0], first + k)
            wait += 1
    counters.hops = hop
    counters.activities += len(block.activities)
    return True


@njit(cache=True)
def _wait_for(state: State, before: int, dependent: int) -> None:
    """Let an activity wait for another activity, unless the other activity has ended."""
    if before >= 0 and state.activities[before].state != ENDED:
        edge = state.counters[0].edges
        state.counters[0].edges += 1
        state.activities[dependent].missing += 1
        state.edges[edge].dependent, state.edges[edge].following = dependent, state.activities[before].first_edge
        state.activities[before].first_edge = edge
