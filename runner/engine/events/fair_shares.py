"""The division of links among the flows that use them: max-min fairness by progressive filling.

The rates of all flows grow together until a link is full. The flows of this link keep their rate, and the others
continue to grow (Bertsekas and Gallager, Data Networks, section 6.5.2). A flow of weight w counts as w equal flows.
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
    """Set the rates of all flows that use a touched link or are connected with one through other flows.

    Afterwards, these flows are in the row ``CONNECTED_FLOWS``. If the rate of a flow has changed, its field ``renewed``
    has the number of this division.
    """
    counters = state.counters[0]
    counters.divisions += 1
    number, now = counters.divisions, counters.now
    _connect(state, number)
    links = state.work[CONNECTED_LINKS]
    unfixed = state.work[CONNECTED_FLOWS][0]
    while unfixed > 0:
        share = np.inf
        for k in range(1, links[0] + 1):
            link = state.links[links[k]]
            if link.unfixed > 0:
                share = min(share, link.free / link.unfixed)
        unfixed -= _fix(state, share, number, now)


@njit(cache=True)
def _connect(state: State, number: int) -> None:
    """Collect the links and flows that are connected with a touched link, and empty the row of touched links."""
    touched, links, flows = state.work[TOUCHED_LINKS], state.work[CONNECTED_LINKS], state.work[CONNECTED_FLOWS]
    links[0] = flows[0] = 0
    for k in range(1, touched[0] + 1):
        state.links[touched[k]].touched = 0
        state.links[touched[k]].seen = number
        append(links, touched[k])
    touched[0] = 0
    at = 0
    while at < links[0]:
        at += 1
        link = state.links[links[at]]
        link.free, link.unfixed = link.capacity, 0
        hop = link.first
        while hop != NONE:
            flow = state.activities[state.hops[hop].activity]
            link.unfixed += flow.weight
            if flow.seen != number:
                flow.seen = number
                append(flows, state.hops[hop].activity)
                for each in range(flow.first_hop, flow.first_hop + flow.hops):
                    other = state.hops[each].link
                    if state.links[other].seen != number:
                        state.links[other].seen = number
                        append(links, other)
            hop = state.hops[hop].after


@njit(cache=True)
def _fix(state: State, share: float, number: int, now: float) -> int:
    """Set the rates of the flows through links whose share is the smallest; return the number of these flows."""
    links, bottlenecks, fixed = state.work[CONNECTED_LINKS], state.work[BOTTLENECKS], 0
    bottlenecks[0] = 0
    for k in range(1, links[0] + 1):
        link = state.links[links[k]]
        if link.unfixed > 0 and link.free <= share * link.unfixed * (1.0 + EQUAL):
            append(bottlenecks, links[k])
    for k in range(1, bottlenecks[0] + 1):
        hop = state.links[bottlenecks[k]].first
        while hop != NONE:
            flow = state.activities[state.hops[hop].activity]
            # A flow whose rate is set has the negative number of this division.
            if flow.seen == number:
                flow.seen = -number
                fixed += 1
                _set_rate(flow, share, number, now)
                for each in range(flow.first_hop, flow.first_hop + flow.hops):
                    link = state.links[state.hops[each].link]
                    link.unfixed -= flow.weight
                    link.free = max(0.0, link.free - share * flow.weight)
            hop = state.hops[hop].after
    return fixed


@njit(cache=True)
def _set_rate(flow: Any, rate: float, number: int, now: float) -> None:
    """Account for the amount that has been moved, and set the new rate."""
    if abs(rate - flow.rate) > EQUAL * rate:
        flow.left = max(0.0, flow.left - flow.rate * (now - flow.since))
        flow.since, flow.rate, flow.renewed = now, rate, number
