"""Jobs that differ in their seed are one row of a table, with mean and spread."""

import math
import statistics
from dataclasses import replace

import pytest

from runner.config.monitor import Monitor
from runner.records.summary import Failure
from runner.sweep.outcome import Outcome
from runner.sweep.seeds import over_seeds, seeds_table, spread_of
from tests.records.test_summary import SUMMARY

ACCURACY = Monitor("test/accuracy")


def job(seed: int, lr: str, accuracy: float | None) -> Outcome:
    """A finished job, or one that failed where it has no accuracy."""
    overrides = [f"seed={seed}", f"lr={lr}"]
    if accuracy is None:
        error = Failure("NumericError", "the loss is nan", 5)
        return Outcome(0, overrides, {}, "failed", replace(SUMMARY, status="failed", error=error, best={}))
    return Outcome(0, overrides, {}, "finished", replace(SUMMARY, best={"test/accuracy": accuracy}))


def test_a_row_is_a_combination_with_mean_spread_and_count_the_best_first() -> None:
    jobs = [job(1, "0.1", 0.5), job(1, "0.2", 0.8), job(2, "0.1", 0.6), job(2, "0.2", 0.9), job(3, "0.2", 0.7)]
    table = seeds_table(over_seeds(jobs, ACCURACY), ACCURACY)
    assert table.headers == ("lr", "n", "best test/accuracy (mean ± sd)", "step time (ms)", "status")
    assert table.rows[0] == ("0.2", "3", f"0.8000 ± {statistics.stdev([0.8, 0.9, 0.7]):.4f}", "10.00", "finished")
    assert table.rows[1][:3] == ("0.1", "2", f"0.5500 ± {math.sqrt(2 * 0.05**2):.4f}")


def test_programs_get_mean_and_spread_in_columns_of_their_own() -> None:
    jobs = [job(1, "0.1", 0.5), job(2, "0.1", 0.7)]
    table = seeds_table(over_seeds(jobs, ACCURACY), ACCURACY, columns_apart=True)
    assert table.headers[:3] == ("n", "best test/accuracy mean", "best test/accuracy sd")
    assert table.rows[0][:3] == ("2", "0.6000", "0.1414")


def test_failed_seeds_do_not_count_but_show() -> None:
    jobs = [job(1, "0.1", 0.5), job(2, "0.1", None), job(1, "9", None), job(2, "9", None)]
    table = seeds_table(over_seeds(jobs, ACCURACY), ACCURACY)
    assert [row[:3] for row in table.rows] == [("0.1", "1", "0.5000"), ("9", "0", "")]
    assert table.rows[0][-1] == "1 finished, 1 failed (failed: NumericError: the loss is nan)"
    assert table.rows[1][-1].startswith("2 failed (")


@pytest.mark.parametrize("seeds", [(1, 1), (3,)])
def test_without_several_seeds_nothing_is_repeated(seeds: tuple[int, ...]) -> None:
    assert over_seeds([job(seed, lr, 0.5) for seed in seeds for lr in ("1", "2")], ACCURACY) == []


def test_a_spread_needs_two_values() -> None:
    assert spread_of([1.0]) is None
    assert spread_of([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert math.isnan(spread_of([1.0, math.inf]) or 0.0)
