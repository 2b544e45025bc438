"""Memory that outlives a step: what grows, what stays where it is, and what there is not enough memory for."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.engine.plan import Slot
from runner.engine.storage import Arena, VariableStore
from runner.engine.tensor import TensorSpec
from runner.errors import ResourceError, RunnerError
from runner.kernels.contract import Layout, plain
from runner.kernels.host import HUGE_PAGE
from runner.kernels.memory import ALIGNMENT

SPEC = TensorSpec((4,), "float64")
SLOT = Slot(SPEC, plain(SPEC))
TOO_MUCH = 1 << 62


class Tenant:
    """Remembers when it had to let go."""

    def __init__(self) -> None:
        self.went = 0

    def let_go(self) -> None:
        self.went += 1


NOBODY = Tenant()
BEYOND_ADDRESSES = 1 << 70


def test_an_arena_grows_to_the_largest_wish_and_says_so() -> None:
    arena = Arena()
    assert (arena.nbytes, arena.generation) == (0, 0)
    first = arena.at_least(100, NOBODY)
    assert (first.nbytes, arena.nbytes, arena.generation) == (100, 100, 1)
    larger = arena.at_least(1000, NOBODY)
    assert (larger.nbytes, arena.nbytes, arena.generation) == (1000, 1000, 2)
    assert not np.shares_memory(first, larger)


def test_an_arena_stays_where_it_is_while_it_is_large_enough() -> None:
    arena = Arena()
    memory = arena.at_least(1000, NOBODY)
    for nbytes in (1000, 10, 0):
        assert arena.at_least(nbytes, NOBODY) is memory
    assert arena.generation == 1


def test_whoever_holds_memory_of_an_arena_lets_go_when_it_grows() -> None:
    arena, first, second = Arena(), Tenant(), Tenant()
    arena.at_least(100, first)
    arena.at_least(50, second)
    assert (first.went, second.went) == (0, 0)
    arena.at_least(1000, second)
    assert (first.went, second.went) == (1, 1)


def test_a_plan_that_needs_no_memory_lets_an_arena_be() -> None:
    arena = Arena()
    assert arena.at_least(0, NOBODY).nbytes == 0
    assert arena.generation == 0


@pytest.mark.parametrize("nbytes", [TOO_MUCH, BEYOND_ADDRESSES])
def test_an_arena_that_is_not_to_be_had_is_refused_with_its_size(nbytes: int) -> None:
    arena = Arena()
    with pytest.raises(ResourceError, match=rf"^{nbytes:,} bytes for the arena of a step are not to be had: "):
        arena.at_least(nbytes, NOBODY)


def test_an_arena_that_could_not_grow_grows_later() -> None:
    arena = Arena()
    arena.at_least(100, NOBODY)
    with pytest.raises(ResourceError):
        arena.at_least(TOO_MUCH, NOBODY)
    assert arena.at_least(50, NOBODY).nbytes >= 50
    assert arena.generation == 2


@pytest.mark.parametrize("nbytes", [1, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5])
def test_memory_is_aligned_zero_and_exactly_as_large_as_asked(nbytes: int) -> None:
    memory = Arena().at_least(nbytes, NOBODY)
    boundary = ALIGNMENT if nbytes < HUGE_PAGE else HUGE_PAGE
    assert (memory.nbytes, memory.ctypes.data % boundary, memory.any()) == (nbytes, 0, False)
    memory[:] = 1
    assert memory.sum(dtype=np.int64) == nbytes


def test_large_memory_is_private_so_that_it_can_lie_in_huge_pages() -> None:
    memory = Arena().at_least(2 * HUGE_PAGE, NOBODY)
    assert _permissions(memory) == "rw-p"


def _permissions(memory: NDArray[np.uint8]) -> str:
    """What the operating system says of the mapping that holds this memory."""
    address = memory.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line)
        assert match is not None
        if int(match[1], 16) <= address < int(match[2], 16):
            return match[3]
    raise AssertionError("no mapping holds this memory")


def test_a_variable_has_the_same_memory_for_every_plan() -> None:
    store = VariableStore()
    memory = store.memory("w", SLOT)
    memory[:] = 7
    assert memory.nbytes == SPEC.nbytes
    assert np.shares_memory(store.memory("w", SLOT), memory)
    assert store.memory("w", SLOT).tolist() == [7] * SPEC.nbytes
    assert not np.shares_memory(store.memory("v", SLOT), memory)


def test_a_variable_takes_what_its_layout_takes() -> None:
    assert VariableStore().memory("w", Slot(SPEC, Layout("aB8b", 640))).nbytes == 640


@pytest.mark.parametrize(
    "other",
    [Slot(SPEC, Layout("aB8b", 64)), Slot(SPEC, Layout("", 64)), Slot(TensorSpec((2, 2), "float64"), plain(SPEC))],
)
def test_a_variable_is_not_taken_for_another(other: Slot) -> None:
    store = VariableStore()
    store.memory("w", SLOT)
    with pytest.raises(RunnerError, match=r"variable 'w' is stored as .*, but a plan takes it as "):
        store.memory("w", other)


def test_a_variable_in_another_layout_is_told_with_both() -> None:
    store = VariableStore()
    store.memory("w", SLOT)
    with pytest.raises(RunnerError, match=r"variable 'w' is stored as .*tag=''.* takes it as .*tag='aB8b'"):
        store.memory("w", Slot(SPEC, Layout("aB8b", 64)))


@pytest.mark.parametrize("nbytes", [TOO_MUCH, BEYOND_ADDRESSES])
def test_a_variable_that_is_not_to_be_had_is_refused_by_name(nbytes: int) -> None:
    with pytest.raises(ResourceError, match=rf"^{nbytes:,} bytes for variable 'w' are not to be had: "):
        VariableStore().memory("w", Slot(SPEC, Layout("", nbytes)))


def test_only_what_was_assigned_has_a_value() -> None:
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
