"""Each portion is given out once, and then again until all are finished."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from runner.strategies.lbfgs.dispatcher import Portions


def test_a_worker_gets_its_range_of_neighbouring_portions() -> None:
    portions = Portions(6, 2)
    assert [portions.give(worker) for worker in (1, 0, 0, 1, 0, 1)] == [3, 0, 1, 4, 2, 5]


def test_a_worker_without_portions_takes_the_last_of_the_longest_range() -> None:
    portions = Portions(9, 3)
    assert [portions.give(2) for _ in range(3)] == [6, 7, 8]
    assert [portions.give(0) for _ in range(2)] == [0, 1]
    assert [portions.give(2) for _ in range(2)] == [5, 4]
    assert portions.give(1) == 3


def test_at_the_end_the_oldest_unfinished_portion_is_repeated() -> None:
    portions = Portions(3, 3)
    assert [portions.give(worker) for worker in (1, 0, 2)] == [1, 0, 2]
    assert portions.finish(2)
    assert portions.give(2) == 1
    assert portions.finish(0)
    assert portions.give(0) == 1, "the only one left, whoever is busy with it"


def test_at_the_end_portions_with_fewest_workers_are_repeated_first_then_the_oldest() -> None:
    portions = Portions(5, 5)
    assert [portions.give(worker) for worker in (1, 0, 2, 3, 4)] == [1, 0, 2, 3, 4]
    assert portions.finish(3)
    assert portions.finish(4)
    assert [portions.give(3), portions.give(4)] == [1, 0]
    assert portions.finish(0)
    assert [portions.give(0), portions.give(4)] == [2, 1]


def test_the_first_to_finish_counts() -> None:
    portions = Portions(2, 2)
    assert [portions.give(worker) for worker in (0, 1)] == [0, 1]
    assert portions.finish(1)
    assert portions.give(1) == 0
    assert (portions.is_open(0), portions.complete) == (True, False)
    assert portions.finish(0)
    assert (portions.is_open(0), portions.complete) == (False, True)
    assert not portions.finish(0)
    assert portions.give(0) is None


@given(st.integers(1, 12), st.integers(1, 5), st.randoms(use_true_random=False))
def test_each_portion_is_finished_once_at_any_speed(count: int, workers: int, random: object) -> None:
    portions, busy = Portions(count, workers), {}
    first: list[int] = []
    while not portions.complete:
        for worker in range(workers):
            if worker not in busy and (portion := portions.give(worker)) is not None:
                copies = Counter({each: 0 for each in range(count) if each not in first})
                copies.update(each for each in busy.values() if each in copies)
                assert copies[portion] == min(copies.values())
                busy[worker] = portion
        worker = random.choice(sorted(busy))  # type: ignore[attr-defined]
        if portions.finish(busy[worker]):
            first.append(busy[worker])
        del busy[worker]
    assert sorted(first) == list(range(count))
