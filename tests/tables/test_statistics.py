"""Statistics of one cell against SciPy and statsmodels, and the verdict against a published value."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW

from runner.tables.statistics import Sample, against_published, median_interval, summary

RNG = np.random.default_rng(16)
CASES = [RNG.normal(0.9, 0.02, n).tolist() for n in (2, 3, 5, 8, 40)] + [[0.1] * 3, [1e9 + 1e-6, 1e9 + 3e-6, 1e9]]

values = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=12)
statistics = st.sampled_from(["mean", "median", "exact"])


@pytest.mark.parametrize("case", CASES[:-2], ids=len)
def test_a_summary_equals_scipy_and_statsmodels(case: list[float]) -> None:
    ours, theirs = summary(case), DescrStatsW(case)
    assert (ours.n, ours.not_finite, ours.values) == (len(case), 0, tuple(sorted(case)))
    shown = (ours.mean, ours.deviation, ours.median, ours.smallest, ours.largest)
    assert shown == pytest.approx((np.mean(case), np.std(case, ddof=1), np.median(case), min(case), max(case)))
    assert (ours.interval.low, ours.interval.high) == pytest.approx(theirs.tconfint_mean(0.05), rel=1e-12)
    assert (ours.interval.low, ours.interval.high) == pytest.approx(stats.ttest_1samp(case, 0).confidence_interval())


def test_a_summary_loses_no_digits() -> None:
    constant, close = (summary(case) for case in CASES[-2:])
    assert (constant.mean, constant.deviation) == (0.1, 0.0)
    assert (constant.interval.low, constant.interval.high) == (0.1, 0.1)
    # 1e9 + 1e-6 and 1e9 + 3e-6 are stored as 8 and 25 times 2**-23 above 1e9.
    assert close.deviation == pytest.approx(np.std([8, 25, 0], ddof=1) * 2**-23, rel=1e-15)


@pytest.mark.parametrize("n", [6, 7, 8, 9, 20, 101])
def test_the_interval_of_a_median_equals_scipy(n: int) -> None:
    case = RNG.exponential(size=n)
    theirs = stats.quantile_test(case, p=0.5).confidence_interval(0.95)
    ours = median_interval(summary(case.tolist()))
    assert (ours.low, ours.high) == (theirs.low, theirs.high)
    assert ours.confidence >= 0.95


def test_the_confidence_of_a_median_interval_is_that_of_its_order_statistics() -> None:
    # Of n values, fewer than k lie below the median with a probability of 1 / 2**6 (n = 6, k = 1) and 10 / 2**9 (9, 2).
    assert median_interval(summary([1, 2, 3, 4, 5, 6])).confidence == pytest.approx(1 - 2 / 64)
    assert median_interval(summary(list(range(9)))).confidence == pytest.approx(1 - 20 / 512)


FIVE = [0.90, 0.91, 0.92, 0.93, 0.94]
"""Mean 0.92; the half-width of its interval is 2.7764 * 0.0158114 / 5**0.5 = 0.01963."""
SIX = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("case", "statistic", "published", "tolerance", "text"),
    [
        (FIVE, "mean", 0.92, 0.0197, "passes"),
        (FIVE, "mean", 0.92, 0.0196, "inconclusive at 5 seeds"),
        (FIVE, "mean", 0.95, 0.0103, "fails"),
        (FIVE, "mean", 0.95, 0.0104, "inconclusive at 5 seeds"),
        (FIVE, "mean", 0.89, 0.0103, "fails"),
        (FIVE, "mean", 0.89, 0.0104, "inconclusive at 5 seeds"),
        ([0.92], "mean", 0.92, 1.0, "inconclusive at 1 seed"),
        ([0.92], "mean", 100.0, 1.0, "inconclusive at 1 seed"),
        ([0.8] * 2, "mean", 0.7, 0.1, "passes"),
        ([0.8] * 2, "mean", 0.7, 0.0999999, "fails"),
        ([0.6] * 2, "mean", 0.7, 0.1, "passes"),
        ([*FIVE, NAN], "mean", 0.92, 1.0, "fails"),
        ([INF], "mean", 0.92, 1.0, "fails"),
        ([1e150, 1.0], "mean", 1.0, 1.0, "fails"),
        (SIX, "median", 3.5, 2.5, "passes"),
        (SIX, "median", 3.5, 2.4, "inconclusive at 6 seeds"),
        (SIX, "median", 7.0, 0.9, "fails"),
        (SIX, "median", 7.0, 1.0, "inconclusive at 6 seeds"),
        (SIX[:5], "median", 3.0, 100.0, "no verdict"),
        ([1.0], "median", 1.0, 0.0, "no verdict"),
        ([*SIX, -INF], "median", 3.5, 100.0, "inconclusive at 7 seeds"),
        ([61_100_840], "exact", 61_100_840, 0.0, "passes"),
        ([61_100_840], "exact", 61_100_841, 0.0, "fails"),
        ([1.0, 3.0], "exact", 2.0, 1.0, "passes"),
        ([1.0, 3.0], "exact", 2.0, 0.5, "inconclusive at 2 seeds"),
        ([NAN], "exact", 2.0, 0.5, "fails"),
    ],
)
def test_a_cell_is_decided_by_the_position_of_its_interval(
    case: list[float], statistic: str, published: float, tolerance: float, text: str
) -> None:
    assert against_published(summary(case), published, tolerance, statistic) == text


@pytest.mark.parametrize("wrong", [NAN, INF, -INF, 1e151, -1e150])
def test_a_sample_with_a_value_that_is_not_finite_has_no_statistics(wrong: float) -> None:
    found = summary([2.0, wrong, 1.0])
    assert (found.n, found.not_finite, len(found.values)) == (3, 1, 3)
    assert found == Sample(found.values, 3, 1)


@given(values, st.randoms())
def test_the_order_of_the_seeds_changes_no_summary(case, random) -> None:
    for cell in (case, [*case, math.inf]):
        assert summary(random.sample(cell, len(cell))) == summary(cell)


@given(
    values,
    statistics,
    st.integers(-50, 50),
    st.integers(0, 50),
    st.integers(-1000, 1000),
    st.sampled_from([-1024.0, -0.5, 0.25, 64.0]),
)
def test_shift_and_scale_do_not_change_a_verdict(case, statistic, published, tolerance, shift, scale) -> None:
    before = against_published(summary(case), published, tolerance, statistic)
    moved = [(value + shift) * scale for value in case]
    assert before == against_published(summary(moved), (published + shift) * scale, tolerance * abs(scale), statistic)


@given(values, statistics, st.integers(-50, 50), st.integers(0, 50), st.integers(0, 50))
def test_a_larger_tolerance_never_makes_a_verdict_worse(case, statistic, published, tolerance, more) -> None:
    verdicts = [against_published(summary(case), published, each, statistic) for each in (tolerance, tolerance + more)]
    before, after = (["fails", "inconclusive", "no", "passes"].index(each.split()[0]) for each in verdicts)
    assert before <= after


def test_a_cell_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^values=\[\]: expected at least one value of the cell$"):
        summary([])
