"""Memory for the arena and the variables of a device."""

import re
from unittest.mock import Mock, call

import numpy as np
import psutil
import pytest

from runner.engine.compile.plan import Slot
from runner.engine.graph import TensorSpec
from runner.engine.run.storage import Arena, VariableStore
from runner.errors import ResourceError, RunnerError
from runner.kernels.contract import Layout, plain
from runner.kernels.memory import ALIGNMENT
from runner.kernels.platform import HUGE_PAGE

SPEC = TensorSpec((4,), "float64")
SLOT = Slot(SPEC, plain(SPEC))
TOO_MUCH = 1 << 62


USER = Mock()
BEYOND_ADDRESSES = 1 << 70


def test_arena_grows_to_the_largest_request_and_counts_generations() -> None:
    arena = Arena()
    assert (arena.at_least(0, USER).nbytes, arena.generation) == (0, 0)
    first = arena.at_least(100, USER)
    assert (first.nbytes, arena.generation) == (100, 1)
    larger = arena.at_least(1000, USER)
    assert (larger.nbytes, arena.generation) == (1000, 2)
    assert not np.shares_memory(first, larger)
    for nbytes in (1000, 10, 0):
        assert arena.at_least(nbytes, USER) is larger
    assert arena.generation == 2


def test_all_users_release_their_memory_when_the_arena_grows() -> None:
    arena, first, second = Arena(), Mock(), Mock()
    arena.at_least(100, first)
    arena.at_least(50, second)
    assert (first.mock_calls, second.mock_calls) == ([], [])
    arena.at_least(1000, second)
    assert (first.mock_calls, second.mock_calls) == ([call.release_memory()], [call.release_memory()])


@pytest.mark.parametrize("nbytes", [TOO_MUCH, BEYOND_ADDRESSES])
def test_request_beyond_the_available_memory_is_refused_with_size_and_purpose(nbytes: int) -> None:
    arena = Arena()
    arena.at_least(100, USER)
    with pytest.raises(ResourceError, match=rf"^{nbytes:,} bytes for the arena of a step are not available: "):
        arena.at_least(nbytes, USER)
    assert arena.at_least(50, USER).nbytes >= 50, "the arena grows later"
    assert arena.generation == 3, "users bind again after the attempt to grow"
    with pytest.raises(ResourceError, match=rf"^{nbytes:,} bytes for variable 'w' are not available: "):
        VariableStore().memory("w", Slot(SPEC, Layout("", nbytes)))


@pytest.mark.parametrize("nbytes", [1, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5])
def test_memory_is_aligned_zero_and_of_the_requested_size(nbytes: int) -> None:
    memory = Arena().at_least(nbytes, USER)
    boundary = ALIGNMENT if nbytes < HUGE_PAGE else HUGE_PAGE
    assert (memory.nbytes, memory.ctypes.data % boundary, memory.any()) == (nbytes, 0, False)
    memory[:] = 1
    assert memory.sum(dtype=np.int64) == nbytes
    (mapping,) = (
        each for each in psutil.Process().memory_maps(grouped=False) if memory.ctypes.data in _range(each.addr)
    )
    assert mapping.perms == "rw-p"


def _range(addresses: str) -> range:
    first, last = (int(each, 16) for each in addresses.split("-"))
    return range(first, last)


def test_variable_has_the_same_memory_for_every_plan() -> None:
    store = VariableStore()
    memory = store.memory("w", SLOT)
    memory[:] = 7
    assert memory.nbytes == SPEC.nbytes
    assert store.memory("blocked", Slot(SPEC, Layout("aB8b", 640))).nbytes == 640
    assert np.shares_memory(store.memory("w", SLOT), memory)
    assert store.memory("w", SLOT).tolist() == [7] * SPEC.nbytes
    assert not np.shares_memory(store.memory("v", SLOT), memory)


@pytest.mark.parametrize(
    "other",
    [Slot(SPEC, Layout("aB8b", 64)), Slot(SPEC, Layout("", 64)), Slot(TensorSpec((2, 2), "float64"), plain(SPEC))],
)
def test_variable_in_another_layout_or_shape_is_refused(other: Slot) -> None:
    store = VariableStore()
    store.memory("w", SLOT)
    expected = f"variable 'w' is stored as {SLOT}, but a plan requires {other}"
    with pytest.raises(RunnerError, match=f"^{re.escape(expected)}$"):
        store.memory("w", other)


def test_only_assigned_variables_have_a_value() -> None:
    store = VariableStore()
    for name in ("a", "b", "c"):
        store.memory(name, SLOT)
    store.mark_assigned(frozenset({"a", "c"}))
    store.require(frozenset())
    store.require(frozenset({"a", "c"}))
    expected = "variable 'b' has no value yet: run the 'init' or the 'restore' client first"
    with pytest.raises(RunnerError, match=expected):
        store.require(frozenset({"d", "c", "b"}))
    with pytest.raises(RunnerError, match="variable 'd' has no value yet"):
        store.require(frozenset({"a", "d"}))
