"""Statistics of one cell: its values over seeds or rounds, and the verdict against a published value.

All functions are pure, and no result is rounded.

A value counts as not finite if it is NaN, infinite or at least 1e150 in magnitude, because sums of squares of such
values can overflow. A sample with such a value has no statistics. Its cell is inconclusive if the median is compared,
and fails otherwise. A tested claim about the cell is undecided.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import mean, median, stdev

CONFIDENCE = 0.95
"""Confidence of intervals, unless an interval states another."""
SEED, ROUND = "seed", "round"
"""Kinds of repetitions: a cell has a value for each seed of a training run, or for each round of a benchmark."""
OVERFLOW = 1e150
"""Magnitude from which on a value counts as not finite."""


@dataclass(frozen=True)
class Interval:
    """A closed interval and the probability with which such an interval contains the estimated quantity."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Sample:
    """The values of one cell, one per seed or round. Statistics that do not exist are None.

    values: in ascending order. not_finite: number of values that are not finite. deviation: standard deviation with
    divisor n - 1. interval: confidence interval of the mean. repetition: "seed" or "round".
    """

    values: tuple[float, ...]
    n: int
    not_finite: int
    mean: float | None = None
    deviation: float | None = None
    median: float | None = None
    smallest: float | None = None
    largest: float | None = None
    interval: Interval | None = None
    repetition: str = SEED


def summary(values: Sequence[float], repetition: str = SEED) -> Sample:
    """Return the statistics of the values of a cell, in any order. Raise ValueError if there are no values.

    Mean and standard deviation are computed exactly and rounded once, so equal values have a deviation of zero. If n is
    1, there is no deviation and no interval.
    """
    if not values:
        raise ValueError("values=[]: expected at least one value of the cell")
    numbers = tuple(sorted((float(value) for value in values), key=lambda number: (math.isnan(number), number)))
    n = len(numbers)
    not_finite = sum(not abs(number) < OVERFLOW for number in numbers)
    if not_finite:
        return Sample(numbers, n, not_finite, repetition=repetition)
    center = mean(numbers)
    deviation = interval = None
    if n > 1:
        deviation = stdev(numbers)
        interval = t_interval(center, deviation / math.sqrt(n), n - 1, CONFIDENCE)
    return Sample(numbers, n, 0, center, deviation, median(numbers), numbers[0], numbers[-1], interval, repetition)


def t_interval(center: float, error: float, freedom: float, confidence: float) -> Interval:
    """Return the interval of Student's t for an estimate with this standard error and these degrees of freedom."""
    from scipy import special

    reach = -error * float(special.stdtrit(freedom, (1 - confidence) / 2))
    return Interval(center - reach, center + reach, confidence)


def median_interval(sample: Sample) -> Interval | None:
    """Return an interval of the median with a confidence of at least 95 %; None if n < 6 or a value is not finite.

    The bounds are the k-th smallest and the k-th largest value, with the largest k for which the confidence
    1 - 2 P(Binomial(n, 1/2) < k) is at least 95 % (David and Nagaraja, Order Statistics, 2003, section 7.1).
    ``Interval.confidence`` is that confidence.
    """
    from scipy import stats

    rank = int(stats.binom.ppf((1 - CONFIDENCE) / 2, sample.n, 0.5))
    if rank == 0 or sample.not_finite:
        return None
    confidence = 1 - 2 * float(stats.binom.cdf(rank - 1, sample.n, 0.5))
    return Interval(sample.values[rank - 1], sample.values[-rank], confidence)


def against_published(sample: Sample, published: float, tolerance: float, statistic: str = "mean") -> str:
    """Return the verdict on a cell with a published value: "passes", "fails", "inconclusive at N seeds", "no verdict".

    The cell passes if the interval of the statistic lies inside published ± tolerance, bounds included. The cell fails
    if the interval lies outside, and is inconclusive if the interval contains a bound. If the true mean lies on a bound
    of a wide tolerance, 2.5 % of the cells pass and 2.5 % fail.

    * mean: the t-interval. One seed gives no interval, so the cell neither passes nor fails.
    * median: ``median_interval``. With fewer than six values there is no verdict.
    * exact: the range of the values, for quantities that do not depend on a seed, such as a number of parameters.
    """
    open_verdict = f"inconclusive at {seeds_text(sample.n, sample.repetition)}"
    if sample.not_finite:
        return open_verdict if statistic == "median" else "fails"
    interval = sample.interval
    if statistic == "median":
        interval = median_interval(sample)
    elif statistic == "exact" and sample.smallest is not None and sample.largest is not None:
        interval = Interval(sample.smallest, sample.largest, 1.0)
    if interval is None:
        return "no verdict" if statistic == "median" else open_verdict
    # Numbers are compared as decimals: 0.8 lies inside 0.7 ± 0.1.
    center, reach, low, high = map(decimal, (published, tolerance, interval.low, interval.high))
    if center - reach <= low and high <= center + reach:
        return "passes"
    return "fails" if high < center - reach or low > center + reach else open_verdict


def decimal(number: float) -> Fraction:
    """Return the decimal number that a float is printed as, without error: 1/10 for 0.1."""
    return Fraction(repr(float(number)))


def seeds_text(number: int, repetition: str = SEED) -> str:
    """Return "1 seed", "2 seeds", "2 rounds" and so on."""
    return f"{number} {repetition}" if number == 1 else f"{number} {repetition}s"


def not_finite_text(sample: Sample) -> str:
    """Return a text with the number of values of a sample that are not finite."""
    return f"{sample.not_finite} of {sample.n} values not finite"
