"""The queue of predicted events: a binary heap in which each activity has at most one event."""

from typing import Any

from numba import njit

from runner.engine.events.state import NONE, State


@njit(cache=True)
def predict(state: State, index: int, time: float) -> None:
    """Set the time of the next event of an activity."""
    queue, at = state.queue, state.activities[index].event
    if at == NONE:
        at = state.counters[0].queued
        state.counters[0].queued += 1
    queue[at].time, queue[at].activity = time, index
    state.activities[index].event = at
    _sink(state, _rise(state, at))


@njit(cache=True)
def next_activity(state: State) -> int:
    """Remove the earliest event and return its activity. Of events at the same time, the lowest index is first."""
    index = state.queue[0].activity
    counters = state.counters[0]
    counters.queued -= 1
    _swap(state, 0, counters.queued)
    state.activities[index].event = NONE
    _sink(state, 0)
    return int(index)


@njit(cache=True)
def _rise(state: State, at: int) -> int:
    """Move an event towards the root until it is in order; return its position."""
    while at > 0 and _earlier(state.queue[at], state.queue[(at - 1) // 2]):
        _swap(state, at, (at - 1) // 2)
        at = (at - 1) // 2
    return at


@njit(cache=True)
def _sink(state: State, at: int) -> None:
    """Move an event away from the root until it is in order."""
    while True:
        least = at
        for child in (2 * at + 1, 2 * at + 2):
            if child < state.counters[0].queued and _earlier(state.queue[child], state.queue[least]):
                least = child
        if least == at:
            return
        _swap(state, at, least)
        at = least


@njit(cache=True)
def _earlier(one: Any, other: Any) -> bool:
    return bool(one.time < other.time or (one.time == other.time and one.activity < other.activity))


@njit(cache=True)
def _swap(state: State, one: int, other: int) -> None:
    first, second = state.queue[one], state.queue[other]
    first.time, second.time = second.time, first.time
    first.activity, second.activity = second.activity, first.activity
    state.activities[first.activity].event = one
    state.activities[second.activity].event = other
