"""The assignment of streams keeps dependencies and omits redundant waits."""

from collections.abc import Sequence

import numpy as np
import pytest

from runner.kernels.gpu.streams import Touched, Turn, assign_streams


def touched(reads: Sequence[int], writes: Sequence[int]) -> Touched:
    """Cells of eight bytes."""
    return Touched(tuple((8 * k, 8 * k + 8) for k in reads), tuple((8 * k, 8 * k + 8) for k in writes))


def before(turns: Sequence[Turn]) -> list[set[int]]:
    """Return, for each work, all works that finish before it starts."""
    found: list[set[int]] = []
    last: dict[int, int] = {}
    for number, turn in enumerate(turns):
        direct = {*turn.after, *([last[turn.stream]] if turn.stream in last else [])}
        found.append(direct.union(*(found[each] for each in direct)))
        last[turn.stream] = number
    return found


def conflicts(first: Touched, second: Touched) -> bool:
    def meet(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
        return any(a < d and c < b for a, b in some for c, d in others)

    return meet(first.writes, second.reads) or meet(first.writes, second.writes) or meet(first.reads, second.writes)


def random_works(seed: int) -> list[Touched]:
    """Return works over a few cells, so that most of them conflict; spans overlap partly."""
    rng = np.random.default_rng(seed)
    works = []
    for _ in range(40):
        spans = [(int(8 * begin), int(8 * (begin + size))) for begin, size in rng.integers([0, 1], [12, 4], (4, 2))]
        works.append(Touched(tuple(spans[: rng.integers(0, 3)]), tuple(spans[3:])))
    return works


@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("seed", range(20))
def test_works_on_the_same_memory_keep_their_order(seed: int, streams: int) -> None:
    works = random_works(seed)
    turns = assign_streams(works, streams)
    earlier = before(turns)
    for j, second in enumerate(works):
        for i in range(j):
            assert not conflicts(works[i], second) or i in earlier[j], (i, j)
    assert {turn.stream for turn in turns} <= set(range(streams))


@pytest.mark.parametrize("seed", range(20))
def test_waits_are_not_redundant(seed: int) -> None:
    turns = assign_streams(random_works(seed), 3)
    for number, turn in enumerate(turns):
        for each in turn.after:
            without = [*turns[:number], Turn(turn.stream, tuple(set(turn.after) - {each}))]
            assert each not in before(without)[number]


def test_a_chain_stays_on_one_stream() -> None:
    chain = [touched([k], [k + 1]) for k in range(10)]
    assert assign_streams(chain, 4) == [Turn(0, ())] * 10


def test_branches_have_separate_streams_and_join_again() -> None:
    works = [
        touched([], [0]),
        touched([0], [1]),
        touched([0], [2]),
        touched([1], [3]),
        touched([2], [4]),
        touched([3, 4], [5]),
    ]
    turns = assign_streams(works, 2)
    assert [turn.stream for turn in turns] == [0, 0, 1, 0, 1, 1]
    assert [turn.after for turn in turns] == [(), (), (0,), (), (), (3,)]


def test_memory_that_is_used_again_keeps_branches_in_order() -> None:
    works = [touched([0], [1]), touched([1], [2]), touched([3], [1]), touched([1], [4])]
    turns = assign_streams(works, 2)
    assert 1 in before(turns)[2], "the second value lies where the first was read"
