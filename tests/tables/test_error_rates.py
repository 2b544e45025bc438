"""Error rates of verdicts in simulated experiments with known effects.

The seeds are fixed. Each rate lies within three standard deviations of the binomial distribution of its expectation.
Other tests compare each p-value, interval and power with SciPy and statsmodels.
"""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from runner.tables.claims import Comparison, decide, every, lower, seeds_needed
from runner.tables.statistics import ROUND, Sample, against_published, summary
from runner.tables.two_samples import differences


def rates(experiment: Callable[[np.random.Generator], str], count: int) -> Counter[str]:
    """Return the frequency of each outcome among ``count`` experiments, as a fraction."""
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


@pytest.mark.parametrize(
    ("mean", "tolerance", "passes", "fails"),
    [(50.0, 50.0, 0.025, 0.025), (-50.0, 50.0, 0.025, 0.025), (0.0, 0.0, 0.0, 0.05)],
    ids=["upper bound", "lower bound", "no tolerance"],
)
def test_rates_of_the_verdicts_on_a_mean(mean: float, tolerance: float, passes: float, fails: float) -> None:
    count = 500
    found = rates(lambda rng: against_published(cell(rng, 5, mean, 0.1), 0.0, tolerance), count)
    assert near(found["passes"], passes, count)
    assert near(found["fails"], fails, count)


def test_the_rate_of_verdicts_on_a_median() -> None:
    count, expected = 1000, 1 / 64

    def experiment(rng: np.random.Generator) -> str:
        # The median of this distribution, log 2, is the upper bound of the tolerance.
        return against_published(summary(rng.exponential(size=6).tolist()), math.log(2) - 50, 50, "median")

    found = rates(experiment, count)
    assert near(found["passes"], expected, count)
    assert near(found["fails"], expected, count)


def test_pairs_of_rounds_show_a_difference_that_independent_samples_hide() -> None:
    """The common noise of two cells in a round is ten times the other noise."""

    def experiment(rng: np.random.Generator) -> str:
        common = rng.lognormal(0, 0.3, 5)
        first, second = (dict(enumerate((common + rng.normal(0, 0.03, 5)).tolist())) for _ in range(2))
        first = {each: value - 0.15 for each, value in first.items()}
        a, b = (summary(list(each.values()), ROUND) for each in (first, second))
        return f"{verdict(lower(a, b, of_rounds=differences(first, second)))} {verdict(lower(a, b))}"

    assert rates(experiment, 100)["holds undecided"] > 0.9


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


def test_rates_of_a_conjunction() -> None:
    """One cell equals the claimed lowest, two are far higher; then all equal the claimed lowest."""

    def lowest(others: tuple[float, ...], count: int, n: int = 8) -> Counter[str]:
        def experiment(rng: np.random.Generator) -> str:
            claimed = cell(rng, n)
            return verdict(every([lower(claimed, cell(rng, n, mean)) for mean in others]))

        return rates(experiment, count)

    assert near(lowest((0, 9, 9), 400)["holds"], 0.025, 400)
    equal = lowest((0, 0, 0), 300)
    assert equal["holds"] < 0.025 + sampling_error(0.025, 300)
    assert 0 < equal["fails"] < 0.025 + sampling_error(0.025, 300)
    assert lowest((9, -9, 9), 30)["fails"] == 1
    parts = [Comparison("", 2, -difference, (1.0, 1.0)) for difference in (0.8, 0.8, 2.0)]
    n = seeds_needed(every(parts), 0.05)
    assert n is not None
    assert 0.8 - sampling_error(0.8, 200) < lowest((0.8, 0.8, 2.0), 200, n)["holds"] < 0.95
