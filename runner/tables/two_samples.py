"""Statistics of two cells of seeds or rounds: t-tests, permutation tests, Hedges' g. Standard deviations must exist."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.tables.statistics import ROUND, Sample, decimal, summary

PERMUTATIONS = 50_000
"""Permutation tests are exact up to this number of permutations: for two cells of nine seeds, or of 15 rounds."""


def deviations(a: Sample, b: Sample) -> tuple[float, float]:
    """Return the standard deviations of two samples with at least two finite values."""
    assert a.deviation is not None
    assert b.deviation is not None
    return a.deviation, b.deviation


def welch(a: Sample, b: Sample) -> tuple[float, float, float]:
    """Return the difference of two means, its standard error and its degrees of freedom (Welch 1947)."""
    assert a.mean is not None
    assert b.mean is not None
    first, second = deviations(a, b)
    errors = first / math.sqrt(a.n), second / math.sqrt(b.n)
    return a.mean - b.mean, math.hypot(*errors), degrees_of_freedom(*errors, a.n, b.n)


def differences(a: Mapping[Any, float], b: Mapping[Any, float]) -> Sample:
    """Return the differences of two cells, ``a`` minus ``b``, in the rounds that both have.

    The values of one round are a pair, because a temporary slowdown of the machine affects both. The differences are
    exact decimal numbers, rounded once.
    """
    pairs = [(a[each], b[each]) for each in a if each in b]
    finite = [(x, y) if math.isfinite(x) and math.isfinite(y) else None for x, y in pairs]
    found = [math.nan if pair is None else float(decimal(pair[0]) - decimal(pair[1])) for pair in finite]
    return summary(found, ROUND)


def paired(of: Sample) -> tuple[float, float, float]:
    """Return the mean of differences, its standard error and its degrees of freedom (Student, Biometrika 6, 1908)."""
    assert of.mean is not None
    assert of.deviation is not None
    return of.mean, of.deviation / math.sqrt(of.n), of.n - 1.0


def sign_flip_p(of: Sample) -> float:
    """Return the two-sided p-value of the test that permutes the signs of differences and compares their means."""
    largest = max(abs(decimal(value)) for value in of.values)
    if largest == 0:
        return 1.0
    # Exact scaling lets SciPy find ties.
    scaled = [float(decimal(value) / largest) for value in of.values]
    return _permutation_test([scaled], lambda x, axis: x.mean(axis), "samples")


def degrees_of_freedom(first: float, second: float, n_first: int, n_second: int) -> float:
    """Return (x + y)² / (x² / (n - 1) + y² / (m - 1)), x = first², y = second² (Satterthwaite, Biometrics 2, 1946)."""
    length = math.hypot(first, second)
    if length == 0:
        return float(n_first + n_second - 2)
    return 1 / ((first / length) ** 4 / (n_first - 1) + (second / length) ** 4 / (n_second - 1))


def tail(distance: float, error: float, freedom: float) -> float:
    """Return P(T > distance / error) for Student's T. If the error is 0, return 1 for distance <= 0, else 0."""
    from scipy import special

    if error == 0:
        return float(distance <= 0)
    return float(special.stdtr(freedom, -distance / error))


def permutation_p(a: Sample, b: Sample) -> float:
    """Return the two-sided p-value of the permutation test of the difference of two means."""
    low, high = (decimal(pick(a.values + b.values)) for pick in (min, max))
    if low == high:
        return 1.0
    # Exact scaling lets SciPy find ties. The order of the cells must not change the random permutations.
    samples = [[float((decimal(x) - low) / (high - low)) for x in cell] for cell in sorted((a.values, b.values))]
    return _permutation_test(samples, lambda x, y, axis: x.mean(axis) - y.mean(axis), "independent")


def _permutation_test(samples: Sequence[Sequence[float]], statistic: Callable[..., Any], permuted: str) -> float:
    """Return the two-sided p-value of a permutation test. permuted: the ``permutation_type`` of SciPy's function.

    The p-value is exact up to ``PERMUTATIONS`` permutations, otherwise from as many random ones with a fixed seed.
    """
    import numpy as np
    from scipy import stats

    options = {"permutation_type": permuted, "vectorized": True, "n_resamples": PERMUTATIONS}
    return float(stats.permutation_test(samples, statistic, **options, rng=np.random.default_rng(0)).pvalue)


def hedges_g(a: Sample, b: Sample) -> float | None:
    """Return Hedges' g: the difference of the means over the root mean square of both deviations, corrected for bias.

    This is g* of Delacre et al., "Why Hedges' g*s based on the non-pooled standard deviation should be reported with
    Welch's t-test" (2021). g is 0 if the means are equal, and None if they differ and neither cell has any spread.
    """
    difference, error, _ = welch(a, b)
    if difference == 0:
        return 0.0
    if error == 0:
        return None
    freedom = degrees_of_freedom(*deviations(a, b), a.n, b.n)
    unbiased = math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom - 1) / 2)) / math.sqrt(freedom / 2)
    return unbiased * difference / (math.hypot(*deviations(a, b)) / math.sqrt(2))
