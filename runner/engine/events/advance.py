"""The compiled core of the event loop, which processes one instant after another."""

from numba import njit

from runner.engine.events.event_queue import next_activity, predict
from runner.engine.events.fair_shares import divide, release
from runner.engine.events.state import (
    CONNECTED_FLOWS,
    DELAYED,
    ENDED,
    FLOWING,
    NONE,
    TOUCHED_LINKS,
    TOUCHED_UNITS,
    WATCHED_ENDS,
    State,
    append,
)
from runner.engine.events.unit_queue import joined, without_root


@njit(cache=True)
def advance(state: State) -> None:
    """Process events until a watched activity has ended or no event is left; always process all events of an instant.

    New activities that wait for no other activity start now. The row ``WATCHED_ENDS`` holds the watched activities that
    have ended.
    """
    counters = state.counters[0]
    state.work[WATCHED_ENDS][0] = 0
    for index in range(counters.considered, counters.activities):
        if state.activities[index].missing == 0:
            _make_ready(state, index)
    counters.considered = counters.activities
    _complete_instant(state)
    while state.work[WATCHED_ENDS][0] == 0 and counters.queued > 0:
        counters.now = state.queue[0].time
        _complete_instant(state)


@njit(cache=True)
def _complete_instant(state: State) -> None:
    """Process all events of the present time.

    A free unit starts a ready activity only after all other events of this time, and links are divided last. A flow
    that has nothing left to move, because of rounding, ends at this time too.
    """
    counters = state.counters[0]
    while True:
        while counters.queued > 0 and state.queue[0].time == counters.now:
            _end_phase(state, next_activity(state))
        if state.work[TOUCHED_UNITS][0] > 0:
            _start_on_units(state)
        elif state.work[TOUCHED_LINKS][0] > 0:
            _divide_links(state)
        else:
            return


@njit(cache=True)
def _divide_links(state: State) -> None:
    """Divide the touched links again, and predict the ends of flows whose rates have changed."""
    divide(state)
    flows, number = state.work[CONNECTED_FLOWS], state.counters[0].divisions
    for k in range(1, flows[0] + 1):
        flow = state.activities[flows[k]]
        if flow.renewed == number:
            predict(state, flows[k], flow.since + flow.left / flow.rate)


@njit(cache=True)
def _end_phase(state: State, index: int) -> None:
    """End the delay or the flow of an activity."""
    each = state.activities[index]
    if each.state == DELAYED and each.amount > 0.0 and each.hops > 0:
        _begin_flow(state, index)
        return
    if each.state == FLOWING:
        _end_flow(state, index)
    _end(state, index)


@njit(cache=True)
def _make_ready(state: State, index: int) -> None:
    """Start an activity that waits for no other activity, or add it to the queue of its unit."""
    each = state.activities[index]
    if each.unit == NONE:
        _start(state, index)
    else:
        unit = state.units[each.unit]
        unit.queue = joined(state, unit.queue, index)
        _touch_unit(state, each.unit)


@njit(cache=True)
def _touch_unit(state: State, number: int) -> None:
    if state.units[number].touched == 0:
        state.units[number].touched = 1
        append(state.work[TOUCHED_UNITS], number)


@njit(cache=True)
def _start_on_units(state: State) -> None:
    """Let every touched unit that is free start the first activity of its queue."""
    touched = state.work[TOUCHED_UNITS]
    for k in range(1, touched[0] + 1):
        unit = state.units[touched[k]]
        unit.touched = 0
        if unit.running == NONE and unit.queue != NONE:
            unit.running = unit.queue
            unit.queue = without_root(state, unit.running)
            _start(state, unit.running)
    touched[0] = 0


@njit(cache=True)
def _start(state: State, index: int) -> None:
    each, now = state.activities[index], state.counters[0].now
    each.start, each.state = now, DELAYED
    predict(state, index, now + each.delay_s)


@njit(cache=True)
def _begin_flow(state: State, index: int) -> None:
    """Add an activity to the flows of its links."""
    each = state.activities[index]
    each.state, each.left, each.since, each.rate = FLOWING, each.amount, state.counters[0].now, 0.0
    for hop in range(each.first_hop, each.first_hop + each.hops):
        link = state.links[state.hops[hop].link]
        state.hops[hop].before, state.hops[hop].after = NONE, link.first
        if link.first != NONE:
            state.hops[link.first].before = hop
        link.first = hop
        _touch_link(state, state.hops[hop].link)


@njit(cache=True)
def _end_flow(state: State, index: int) -> None:
    """Remove an activity, which has moved its amount, from the flows of its links."""
    each = state.activities[index]
    for hop in range(each.first_hop, each.first_hop + each.hops):
        own = state.hops[hop]
        link = state.links[own.link]
        if own.before == NONE:
            link.first = own.after
        else:
            state.hops[own.before].after = own.after
        if own.after != NONE:
            state.hops[own.after].before = own.before
        link.carried += each.amount * each.weight
        # Without flows, no rounding remains.
        link.used = 0.0 if link.first == NONE else link.used - each.rate * each.weight
        _touch_link(state, own.link)
    release(state, each)


@njit(cache=True)
def _touch_link(state: State, number: int) -> None:
    if state.links[number].touched == 0:
        state.links[number].touched = 1
        append(state.work[TOUCHED_LINKS], number)


@njit(cache=True)
def _end(state: State, index: int) -> None:
    """End an activity, free its unit, and make every dependent ready that waits for no other activity."""
    each = state.activities[index]
    each.end, each.state = state.counters[0].now, ENDED
    if each.watched == 1:
        append(state.work[WATCHED_ENDS], index)
    if each.unit != NONE:
        unit = state.units[each.unit]
        unit.running = NONE
        unit.busy_s += each.end - each.start
        _touch_unit(state, each.unit)
    edge = each.first_edge
    while edge != NONE:
        dependent = state.edges[edge].dependent
        state.activities[dependent].missing -= 1
        if state.activities[dependent].missing == 0:
            _make_ready(state, dependent)
        edge = state.edges[edge].following
