"""Which peers count, and which of them is the best."""

import math

import pytest

from benchmarks.results import TOLERANCES
from tests.benchmarks.made import LOSSES, case, subject


def test_the_best_peer_is_the_one_with_the_shortest_median() -> None:
    result = case(subject("runner", [5]), subject("slow", [9, 9, 9]), subject("fast", [6, 7, 100]))
    best = result.best_peer("step")
    assert best is not None
    assert (best.name, best.median("step")) == ("fast", 0.007)
    assert result.best_peer("forward") is None


def test_a_peer_that_computes_something_else_does_not_count() -> None:
    other = subject("other", [1], losses=(3.0, 2.9, 2.8), memory_mib=(1.0, 2.0))
    failed = subject("failed", failure="ended with code 1", losses=LOSSES, memory_mib=(0.0, 0.0))
    result = case(subject("runner", [5]), other, failed, subject("same", [9]))
    assert [peer.name for peer in result.comparable()] == ["same"]
    best, lean = result.best_peer("step"), result.leanest_peer()
    assert (best and best.name, lean and lean.name) == ("same", "same")


def test_without_losses_of_runner_no_subject_counts() -> None:
    result = case(subject("runner", failure="ended", losses=()), subject("peer", [9]))
    assert result.comparable() == []


@pytest.mark.parametrize(
    ("theirs", "holds"),
    [
        ((3.0, 2.5, 2.0), True),
        ((3.002, 2.501, 2.001), True),
        ((3.004, 2.5, 2.0), False),  # more than a thousandth of the loss
        ((3.0, 2.5, math.nan), False),
    ],
)
def test_float32_losses_agree_to_a_thousandth(theirs: tuple[float, ...], holds: bool) -> None:
    assert TOLERANCES["float32"].holds(LOSSES, theirs) is holds


def test_a_missing_update_shows_though_the_loss_hardly_moves() -> None:
    ours = (6.9000, 6.8990, 6.8980)
    assert TOLERANCES["float32"].holds(ours, (6.9, 6.8991, 6.8981))
    assert not TOLERANCES["float32"].holds(ours, (6.9, 6.9, 6.9))


def test_quartiles_of_a_single_run_are_that_run() -> None:
    assert subject("peer", [4]).quartiles("step") == (0.004, 0.004)
    assert subject("peer", [1, 2, 3, 4, 5]).quartiles("step") == pytest.approx((0.002, 0.004))
