"""The queue of a unit: a pairing heap of the activities that are ready for the unit (Fredman et al. 1986)."""

from numba import njit

from runner.engine.events.state import NONE, State


@njit(cache=True)
def joined(state: State, one: int, other: int) -> int:
    """Return the root of the heap that joins two heaps; ``NONE`` is the empty heap."""
    if one == NONE or other == NONE:
        return max(one, other)
    if _before(state, other, one):
        one, other = other, one
    state.activities[other].sibling = state.activities[one].child
    state.activities[one].child = other
    return one


@njit(cache=True)
def without_root(state: State, root: int) -> int:
    """Return the root of a heap after its root was removed."""
    pairs, child = NONE, state.activities[root].child
    while child != NONE:
        second = _detach(state, child)
        following = NONE if second == NONE else _detach(state, second)
        pair = joined(state, child, second)
        state.activities[pair].sibling = pairs
        pairs, child = pair, following
    heap = NONE
    while pairs != NONE:
        following = _detach(state, pairs)
        heap = joined(state, heap, pairs)
        pairs = following
    return heap


@njit(cache=True)
def _detach(state: State, index: int) -> int:
    """Remove an activity from its list of siblings and return the next sibling."""
    following = state.activities[index].sibling
    state.activities[index].sibling = NONE
    return int(following)


@njit(cache=True)
def _before(state: State, one: int, other: int) -> bool:
    """Return whether a unit runs ``one`` before ``other``: by rank, then in the order of addition."""
    first, second = state.activities[one], state.activities[other]
    return bool(first.rank < second.rank or (first.rank == second.rank and one < other))
