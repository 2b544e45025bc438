"""Simulated experiments with known effects: how often each verdict is wrong, and how often it is reached.

The seeds are fixed. Each rate lies within three standard deviations of the binomial distribution of its expectation.
"""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from runner.tables.claims import Comparison, decide, equivalent, every, lower, seeds_needed
from runner.tables.statistics import ROUND, Sample, against_published, summary
from runner.tables.two_samples import differences, hedges_g

Normal = tuple[float, float]
"""Mean and standard deviation of a cell."""


def rates(experiment: Callable[[np.random.Generator], str], count: int) -> Counter[str]:
    """Return how often each outcome occurs among ``count`` experiments, as fractions."""
    rng = np.random.default_rng(16)
    found = Counter(experiment(rng) for _ in range(count))
    return Counter({outcome: number / count for outcome, number in found.items()})


def sampling_error(expected: float, count: int) -> float:
    return 3 * math.sqrt(expected * (1 - expected) / count)


def near(rate: float, expected: float, count: int) -> bool:
    return abs(rate - expected) <= sampling_error(expected, count)


def cell(rng: np.random.Generator, n: int, mean: float = 0.0, deviation: float = 1.0) -> Sample:
    return summary(rng.normal(mean, deviation, n).tolist())


def verdict(*claims: Comparison) -> str:
    """Return the verdict on the first claim of a table."""
    return decide(claims)[0].verdict


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize(
    ("mean", "tolerance", "passes", "fails"),
    [(50.0, 50.0, 0.025, 0.025), (-50.0, 50.0, 0.025, 0.025), (0.0, 0.0, 0.0, 0.05), (0.0, 1e6, 1.0, 0.0)],
    ids=["upper bound", "lower bound", "no tolerance", "inside"],
)
def test_rates_of_the_verdicts_on_a_mean(n: int, mean: float, tolerance: float, passes: float, fails: float) -> None:
    count = 1000
    found = rates(lambda rng: against_published(cell(rng, n, mean, 0.1), 0.0, tolerance).verdict, count)
    assert near(found["passes"], passes, count)
    assert near(found["fails"], fails, count)


@pytest.mark.parametrize(("n", "expected"), [(6, 1 / 64), (9, 10 / 512)])
def test_rates_of_the_verdicts_on_a_median(n: int, expected: float) -> None:
    count = 2000

    def experiment(rng: np.random.Generator) -> str:
        # The median of this distribution, log 2, is the upper bound of the tolerance.
        return against_published(summary(rng.exponential(size=n).tolist()), math.log(2) - 50, 50, "median").verdict

    found = rates(experiment, count)
    assert near(found["passes"], expected, count)
    assert near(found["fails"], expected, count)


@pytest.mark.parametrize(
    ("test", "n", "m", "deviation", "expected", "count"),
    [
        ("welch", 20, 20, 1.0, 0.05, 1000),
        ("welch", 5, 40, 3.0, 0.05, 1000),
        # At most 12 of 252 permutations have a p-value of at most 0.05.
        ("permutation", 5, 5, 1.0, 12 / 252, 400),
    ],
)
def test_claims_about_equal_cells_are_decided_at_the_rate_alpha(test, n, m, deviation, expected, count) -> None:
    found = rates(lambda rng: verdict(lower(cell(rng, n, 3.0, deviation), cell(rng, m, 3.0), test)), count)
    assert near(found["holds"], expected / 2, count)
    assert near(found["fails"], expected / 2, count)


def round_times(rng: np.random.Generator, n: int, shift: float = 0.0) -> tuple[Sample, Sample, Sample]:
    """Return two cells of n rounds, and their differences; what a round has in common is ten times the other noise."""
    common = rng.lognormal(0, 0.3, n)
    a, b = (dict(enumerate((common + rng.normal(0, 0.03, n)).tolist())) for _ in range(2))
    a = {each: value + shift for each, value in a.items()}
    return summary(list(a.values()), ROUND), summary(list(b.values()), ROUND), differences(a, b)


@pytest.mark.parametrize(("test", "expected"), [("welch", 0.05), ("permutation", 12 / 2**8)])
def test_claims_about_equal_times_are_decided_at_the_rate_alpha(test: str, expected: float) -> None:
    """Eight rounds; at most 12 of 256 permutations of signs have a p-value of at most 0.05."""

    def experiment(rng: np.random.Generator) -> str:
        a, b, pairs = round_times(rng, 8)
        return verdict(lower(a, b, test, pairs))

    count = 1000 if test == "welch" else 300
    found = rates(experiment, count)
    assert near(found["holds"], expected / 2, count)
    assert near(found["fails"], expected / 2, count)


def test_pairs_show_a_difference_that_independent_samples_hide() -> None:
    def experiment(rng: np.random.Generator) -> str:
        a, b, pairs = round_times(rng, 5, -0.15)
        return f"{verdict(lower(a, b, of_rounds=pairs))} {verdict(lower(a, b))}"

    assert rates(experiment, 200)["holds undecided"] > 0.9


def test_all_claims_of_a_table_together_keep_alpha() -> None:
    """Four of five claims are about equal cells; one is true. Without correction, 18.5 % of the tables are wrong."""
    count = 400

    def experiment(rng: np.random.Generator) -> str:
        *equal, true = decide([lower(cell(rng, 10), cell(rng, 10, mean)) for mean in (0, 0, 0, 0, 9)])
        return f"{'right' if {each.verdict for each in equal} == {'undecided'} else 'wrong'} {true.verdict}"

    found = rates(experiment, count)
    assert found["right holds"] + found["wrong holds"] == 1
    # Once the true claim is decided, Holm's correction tests the other four at 0.05 / 4 each.
    assert near(found["wrong holds"], 1 - (1 - 0.05 / 4) ** 4, count)


@pytest.mark.parametrize(
    ("difference", "margin", "holds", "fails"), [(9.0, 9.0, 0.05, 0.025), (-9.0, 9.0, 0.05, 0.025), (0, 1e-9, 0, 0.05)]
)
def test_rates_of_equivalence_at_its_margin(difference: float, margin: float, holds: float, fails: float) -> None:
    count = 1000
    found = rates(lambda rng: verdict(equivalent(cell(rng, 9, difference, 0.2), cell(rng, 6), margin)), count)
    assert near(found["holds"], holds, count)
    assert near(found["fails"], fails, count)


def test_rates_of_a_conjunction() -> None:
    """One cell equals the claimed lowest, two are far higher; then all equal the claimed lowest."""

    def lowest(others: tuple[float, ...], count: int) -> Counter[str]:
        def experiment(rng: np.random.Generator) -> str:
            claimed = cell(rng, 8)
            return verdict(every([lower(claimed, cell(rng, 8, mean)) for mean in others]))

        return rates(experiment, count)

    assert near(lowest((0, 9, 9), 600)["holds"], 0.025, 600)
    equal = lowest((0, 0, 0), 400)
    assert equal["holds"] < 0.025 + sampling_error(0.025, 400)
    assert 0 < equal["fails"] < 0.025 + sampling_error(0.025, 400)
    assert lowest((9, 9, 9), 50)["holds"] == 1
    assert lowest((9, -9, 9), 50)["fails"] == 1


@pytest.mark.parametrize(
    ("first", "second", "margin", "outcome"),
    [
        ((0, 1), (0.7, 1), None, "holds"),
        ((2, 1), (0, 3), None, "fails"),
        ((0, 1), (0, 1), 0.8, "holds"),
        ((0, 1), (0.3, 1.5), 1.5, "holds"),
        ((3, 2), (0, 1), 1.5, "fails"),
    ],
)
def test_the_seeds_needed_decide_four_of_five_tables(
    first: Normal, second: Normal, margin: float | None, outcome: str
) -> None:
    count = 500
    true = Comparison("", 2, first[0] - second[0], (first[1], second[1]), margin=margin)
    n = seeds_needed(true, 0.05)
    assert n is not None
    assert 10 < n < 100

    def experiment(rng: np.random.Generator) -> str:
        a, b = cell(rng, n, *first), cell(rng, n, *second)
        return verdict(lower(a, b) if margin is None else equivalent(a, b, margin))

    found = rates(experiment, count)
    assert near(found[outcome], 0.8, count)
    assert found["holds" if outcome == "fails" else "fails"] < 0.01


def test_the_seeds_needed_decide_all_parts_of_a_conjunction() -> None:
    count = 300
    true = [Comparison("", 2, -difference, (1.0, 1.0)) for difference in (0.8, 0.8, 2.0)]
    n = seeds_needed(every(true), 0.05)
    assert n is not None

    def experiment(rng: np.random.Generator) -> str:
        claimed = cell(rng, n)
        return verdict(every([lower(claimed, cell(rng, n, mean)) for mean in (0.8, 0.8, 2.0)]))

    assert 0.8 - sampling_error(0.8, count) < rates(experiment, count)["holds"] < 0.95


def test_hedges_g_has_no_bias() -> None:
    rng = np.random.default_rng(16)
    found = [hedges_g(cell(rng, 5, 0.8), cell(rng, 5)) for _ in range(3000)]
    # Cohen's d is 10 % too large with five seeds per cell.
    assert abs(np.mean(found) - 0.8) < 3 * np.std(found) / math.sqrt(len(found)) < 0.05
