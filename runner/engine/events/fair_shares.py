"""The division of links among the flows that use them: max-min fairness by progressive filling.

The rates of all flows grow together until a link is full. The flows of this link keep their rate, and the others
continue to grow (Bertsekas and Gallager, Data Networks, section 6.5.2). A flow of weight w counts as w equal flows.

The rates are max-min fair if and only if every flow has a bottleneck: a full link on which no flow is faster. After a
change, only the changed bottlenecks are therefore divided again, and the other flows keep their rates. Other links are
included until every flow has a bottleneck.
"""

from typing import Any

import numpy as np
from numba import njit

from runner.engine.events.state import (
    BOTTLENECKS,
    CONNECTED_FLOWS,
    CONNECTED_LINKS,
    NONE,
    TOUCHED_LINKS,
    State,
    append,
)

EQUAL = 1e-12
"""Relative difference up to which two shares count as one bottleneck, and two rates as equal."""


@njit(cache=True)
def divide(state: State) -> None:
    """Set the rates of the flows whose rates can have changed since the last division.

    Afterwards, these flows are in the row ``CONNECTED_FLOWS``. If the rate of a flow has changed, its field ``renewed``
    has the number of this division.
    """
    state.counters[0].divisions += 1
    _collect(state)
    while True:
        _fill(state)
        if not _include_more(state):
            break
    _set_rates(state)


@njit(cache=True)
def _collect(state: State) -> None:
    """Collect the new flows and the touched links that are bottlenecks; empty the row of touched links."""
    touched = state.work[TOUCHED_LINKS]
    state.work[CONNECTED_LINKS][0] = state.work[CONNECTED_FLOWS][0] = 0
    for k in range(1, touched[0] + 1):
        link = state.links[touched[k]]
        link.touched = 0
        if link.limits > 0:
            _include(state, touched[k])
            continue
        hop = link.first
        while hop != NONE and state.activities[state.hops[hop].activity].bottleneck == NONE:  # new flows are the first
            _add_flow(state, state.hops[hop].activity)
            hop = state.hops[hop].after
    touched[0] = 0


@njit(cache=True)
def _include(state: State, number: int) -> None:
    """Collect a link with all its flows, so that the whole link is divided again."""
    division = state.counters[0].divisions
    _add_link(state, number)
    state.links[number].divided = division
    hop = state.links[number].first
    while hop != NONE:
        _add_flow(state, state.hops[hop].activity)
        hop = state.hops[hop].after


@njit(cache=True)
def _add_flow(state: State, index: int) -> None:
    """Collect a flow and its links, which other flows may use too."""
    flow = state.activities[index]
    if abs(flow.seen) != state.counters[0].divisions:
        flow.seen = state.counters[0].divisions
        append(state.work[CONNECTED_FLOWS], index)
        for hop in range(flow.first_hop, flow.first_hop + flow.hops):
            _add_link(state, state.hops[hop].link)


@njit(cache=True)
def _add_link(state: State, number: int) -> None:
    if state.links[number].seen != state.counters[0].divisions:
        state.links[number].seen = state.counters[0].divisions
        append(state.work[CONNECTED_LINKS], number)


@njit(cache=True)
def _fill(state: State) -> None:
    """Compute the shares of the collected flows; the other flows keep their rates."""
    links, flows, division = state.work[CONNECTED_LINKS], state.work[CONNECTED_FLOWS], state.counters[0].divisions
    for k in range(1, links[0] + 1):
        link = state.links[links[k]]
        link.level, link.unfixed, link.free = (
            np.inf,
            0,
            link.capacity - (0.0 if link.divided == division else link.used),
        )
    for k in range(1, flows[0] + 1):
        flow = state.activities[flows[k]]
        flow.seen = division
        for hop in range(flow.first_hop, flow.first_hop + flow.hops):
            link = state.links[state.hops[hop].link]
            link.unfixed += flow.weight
            if link.divided != division:
                link.free += flow.rate * flow.weight
    unfixed = flows[0]
    while unfixed > 0:
        share = np.inf
        for k in range(1, links[0] + 1):
            link = state.links[links[k]]
            if link.unfixed > 0:
                share = min(share, max(0.0, link.free) / link.unfixed)
        unfixed -= _fix(state, share)


@njit(cache=True)
def _fix(state: State, share: float) -> int:
    """Set the share of the flows through links whose share is the smallest; return the number of these flows."""
    links, bottlenecks, fixed = state.work[CONNECTED_LINKS], state.work[BOTTLENECKS], 0
    division = state.counters[0].divisions
    bottlenecks[0] = 0
    for k in range(1, links[0] + 1):
        link = state.links[links[k]]
        if link.unfixed > 0 and link.free <= share * link.unfixed * (1.0 + EQUAL):
            append(bottlenecks, links[k])
            link.level = share
    for k in range(1, bottlenecks[0] + 1):
        hop = state.links[bottlenecks[k]].first
        while hop != NONE:
            flow = state.activities[state.hops[hop].activity]
            # A flow whose share is set has the negative number of this division.
            if flow.seen == division:
                flow.seen, flow.share, flow.filled = -division, share, bottlenecks[k]
                fixed += 1
                for each in range(flow.first_hop, flow.first_hop + flow.hops):
                    link = state.links[state.hops[each].link]
                    link.unfixed -= flow.weight
                    link.free = link.free - share * flow.weight
            hop = state.hops[hop].after
    return fixed


@njit(cache=True)
def _include_more(state: State) -> bool:
    """Include the links on which a flow that kept its rate may have lost its bottleneck; return whether there are any.

    They are the links that limit a flow and whose use has changed, and those that became full with a faster flow.
    """
    links, flows, division = state.work[CONNECTED_LINKS], state.work[CONNECTED_FLOWS], state.counters[0].divisions
    collected, more = links[0], False
    for k in range(1, collected + 1):
        link = state.links[links[k]]
        if link.divided != division and link.level < np.inf and _has_faster(state, links[k], link.level):
            _include(state, links[k])
            more = True
    for k in range(1, flows[0] + 1):
        flow = state.activities[flows[k]]
        # A flow without a share was included just now.
        if flow.seen > 0 or _equal(flow.share, flow.rate):
            continue
        for hop in range(flow.first_hop, flow.first_hop + flow.hops):
            link = state.links[state.hops[hop].link]
            if link.divided != division and link.limits > 0:
                _include(state, state.hops[hop].link)
                more = True
    return more


@njit(cache=True)
def _has_faster(state: State, number: int, share: float) -> bool:
    """Return whether a link has a flow that was not collected and has a rate above ``share``."""
    hop, division = state.links[number].first, state.counters[0].divisions
    while hop != NONE:
        flow = state.activities[state.hops[hop].activity]
        if abs(flow.seen) != division and flow.rate > share * (1.0 + EQUAL):
            return True
        hop = state.hops[hop].after
    return False


@njit(cache=True)
def _set_rates(state: State) -> None:
    """Give the collected flows their shares as rates, and account for the amounts that they have moved."""
    links, flows, division = state.work[CONNECTED_LINKS], state.work[CONNECTED_FLOWS], state.counters[0].divisions
    for k in range(1, links[0] + 1):
        if state.links[links[k]].divided == division:
            state.links[links[k]].used = 0.0
    for k in range(1, flows[0] + 1):
        flow, now = state.activities[flows[k]], state.counters[0].now
        before = flow.rate
        if not _equal(flow.share, flow.rate):
            flow.left = max(0.0, flow.left - flow.rate * (now - flow.since))
            flow.since, flow.rate, flow.renewed = now, flow.share, division
        for hop in range(flow.first_hop, flow.first_hop + flow.hops):
            link = state.links[state.hops[hop].link]
            link.used += flow.weight * (flow.rate - (0.0 if link.divided == division else before))
        if flow.bottleneck != flow.filled:
            release(state, flow)
            flow.bottleneck = flow.filled
            state.links[flow.bottleneck].limits += 1


@njit(cache=True)
def release(state: State, flow: Any) -> None:
    """Subtract a flow from the flows that its bottleneck limits, if it has one."""
    if flow.bottleneck != NONE:
        state.links[flow.bottleneck].limits -= 1


@njit(cache=True)
def _equal(rate: float, other: float) -> bool:
    return abs(rate - other) <= EQUAL * rate
