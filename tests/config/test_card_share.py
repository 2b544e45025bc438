"""Cards dealt out to jobs that run at the same time: each has its own while there are enough."""

from __future__ import annotations

import pytest

from runner.config.card_share import ALL_CARDS, CardShare
from tests.cards import card


@pytest.mark.parametrize(
    ("cards", "jobs", "expected"),
    [
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (2, 2, [[0], [1]]),
        (2, 5, [[0], [1], [0], [1], [0]]),
        (0, 2, [[], []]),
    ],
)
def test_every_card_is_dealt_once_unless_there_are_fewer_than_jobs(
    cards: int, jobs: int, expected: list[list[int]]
) -> None:
    there = [card(number) for number in range(cards)]
    dealt = [[each.number for each in CardShare(place, jobs).of(there)] for place in range(jobs)]
    assert dealt == expected
    assert [each.number for each in CardShare(jobs, jobs).of(there)] == expected[0], "one more than were expected"


def test_a_run_that_has_the_machine_to_itself_has_all_cards_by_their_numbers() -> None:
    there = [card(3), card(5)]
    assert ALL_CARDS.of(there) == there
    assert CardShare(1, 2).of(there) == [card(5)]


def test_a_job_is_told_what_it_has_and_whether_others_have_it_too() -> None:
    there = [card(0), card(1), card(2)]
    assert CardShare(0, 2).text(there) == "2 jobs of the sweep run at a time: this one has card 0, 1 of 3"
    assert (
        CardShare(3, 4).text(there)
        == "4 jobs of the sweep run at a time: this one has card 0 of 3, shared with other jobs"
    )
