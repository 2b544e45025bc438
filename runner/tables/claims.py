"""Claims between the cells of a table: their tests, Holm's correction, and the seeds that an undecided claim needs.

Read in this order: ``lower``, ``equivalent`` and ``every`` test one claim; ``decide`` gives the verdicts on all claims
of a table. All functions are pure, and no result is rounded.

Each claim has two p-values: ``p_for`` of the hypothesis that the claim is false, and ``p_against`` of the hypothesis
that it is true. The smaller p-value enters Holm's correction. A claim that cannot be tested has 1 for both and counts
in the correction, so that no verdict is withdrawn when more cells are measured.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from runner.tables.statistics import CONFIDENCE, SEED, Interval, Sample, not_finite_text, seeds_text, t_interval
from runner.tables.two_samples import (
    degrees_of_freedom,
    deviations,
    hedges_g,
    paired,
    permutation_p,
    sign_flip_p,
    tail,
    welch,
)

ALPHA = 0.05
"""Largest probability that claims of a table hold or fail wrongly, under the assumptions of their tests."""
POWER = 0.8
"""Probability that the stated number of seeds decides a claim, if the measured effect is the true effect."""
FEWEST_SEEDS = 5
"""Smallest number of seeds, or of rounds, per cell with which a claim is tested."""
MOST_SEEDS = 1000
"""Largest number of seeds that is reported as needed."""


@dataclass(frozen=True)
class Comparison:
    """The evidence for and against one claim, before the correction for several claims.

    seeds: the smaller number of seeds of the cells. difference: the first mean minus the second mean. deviations: the
    standard deviations of the two cells; for rounds, the deviation of the differences, and 0. interval: the t-interval
    of the difference. effect: Hedges' g; None for rounds. margin: the margin of an equivalence claim. reason: the
    reason why the claim cannot be tested, or "". parts: the claims that a conjunction joins; the conjunction has no
    difference and no effect. repetition: as in :class:`~runner.tables.statistics.Sample`.
    """

    test: str
    seeds: int
    difference: float | None = None
    deviations: tuple[float, float] | None = None
    interval: Interval | None = None
    effect: float | None = None
    margin: float | None = None
    p_for: float = 1.0
    p_against: float = 1.0
    reason: str = ""
    parts: tuple["Comparison", ...] = ()
    repetition: str = SEED


def lower(a: Sample, b: Sample, test: str = "welch", of_rounds: Sample | None = None) -> Comparison:
    """Test the claim that the mean of cell ``a`` is lower than the mean of ``b``; swap them for "higher".

    of_rounds: for rounds, which are pairs, the differences ``a`` minus ``b``. The test is two-sided, and the sign of
    the difference decides which p-value gets the result.

    * welch: the t-test for unequal variances (Welch, Biometrika 34, 1947). If neither cell has any spread, t does not
      exist, and the permutation test replaces it; ``Comparison.test`` names the test that was used.
    * permutation: the permutation test of the difference of the means (Fisher, The Design of Experiments, 1935).

    For rounds, the paired t-test and the permutation of the signs of the differences replace these tests.
    """
    name, by_signs = (test, "permutation") if of_rounds is None else (_PAIRED[test], _PAIRED["permutation"])
    if untested := obstacle(name, a, b):
        return untested
    difference, error, freedom = welch(a, b) if of_rounds is None else paired(of_rounds)
    if test == "permutation" or not error:
        name, p = by_signs, permutation_p(a, b) if of_rounds is None else sign_flip_p(of_rounds)
    else:
        p = min(1.0, 2 * tail(abs(difference), error, freedom))
    interval = t_interval(difference, error, freedom, CONFIDENCE)
    found = _compared(name, a, b, of_rounds, difference, interval)
    return replace(found, p_for=p if difference < 0 else 1.0, p_against=p if difference > 0 else 1.0)


_PAIRED = {"welch": "paired t-test", "permutation": "permutation of signs"}
"""Key ``test`` of a claim -> name of the test for cells of rounds."""


def _compared(
    test: str, a: Sample, b: Sample, of_rounds: Sample | None, difference: float, interval: Interval
) -> Comparison:
    """Return the facts about two cells, without p-values. The deviations are for :func:`power`."""
    if of_rounds is None:
        spread, effect = deviations(a, b), hedges_g(a, b)
    else:
        assert of_rounds.deviation is not None
        spread, effect = (of_rounds.deviation, 0.0), None
    return Comparison(test, min(a.n, b.n), difference, spread, interval, effect, repetition=a.repetition)


def equivalent(a: Sample, b: Sample, margin: float, of_rounds: Sample | None = None) -> Comparison:
    """Test the claim that the means of two cells differ by less than ``margin`` (above 0), in units of the metric.

    Two one-sided tests (TOST; Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987) with Welch's t. Without correction, the
    claim holds if the 90 % interval of the difference lies inside ± margin, and fails if the 95 % interval lies wholly
    outside; the result contains the 90 % interval. If neither cell has any spread, the interval is a point.
    of_rounds: as in :func:`lower`; the t-tests are then paired.
    """
    name = "TOST" if of_rounds is None else "paired TOST"
    if untested := obstacle(name, a, b, margin):
        return untested
    difference, error, freedom = welch(a, b) if of_rounds is None else paired(of_rounds)
    interval = t_interval(difference, error, freedom, 1 - 2 * ALPHA)
    return replace(
        _compared(name, a, b, of_rounds, difference, interval),
        margin=margin,
        p_for=tail(margin - abs(difference), error, freedom),
        p_against=min(1.0, 2 * tail(abs(difference) - margin, error, freedom)),
    )


def every(parts: Sequence[Comparison]) -> Comparison:
    """Test the claim that all parts are true, such as "A is the lowest": A is lower than B, than C and than D.

    The claim has one place in Holm's correction. It holds if every part holds at the level of the claim, so ``p_for``
    is the largest ``p_for`` of the parts (intersection-union test; Berger, Technometrics 24, 1982). It fails if one of
    the k parts fails, so ``p_against`` is k times the smallest ``p_against`` of the parts (Bonferroni). If a part
    cannot be tested, the claim cannot hold.
    """
    return Comparison(
        "all of: " + ", ".join(sorted({part.test for part in parts})),
        min(part.seeds for part in parts),
        p_for=max(part.p_for for part in parts),
        p_against=min(1.0, len(parts) * min(part.p_against for part in parts)),
        reason="; ".join(dict.fromkeys(part.reason for part in parts if part.reason)),
        parts=tuple(parts),
        repetition=parts[0].repetition,
    )


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on one claim of a table. p, p_adjusted: the p-value before and after Holm's correction.

    strictest: the strictest level of Holm's correction, ALPHA / number of claims.
    """

    comparison: Comparison
    p: float
    p_adjusted: float
    verdict: Literal["holds", "fails", "undecided"]
    strictest: float = ALPHA

    @cached_property
    def seeds_needed(self) -> int | None:
        """The seeds per cell that decide an undecided claim, at the strictest level, with a probability of 80 %.

        None if the claim is decided, if more than ``MOST_SEEDS`` are needed, or if a value is not finite.
        """
        return seeds_needed(self.comparison, self.strictest) if self.verdict == "undecided" else None

    @property
    def text(self) -> str:
        """The verdict as a table shows it."""
        if self.verdict != "undecided":
            return self.verdict
        return f"undecided at {seeds_text(self.comparison.seeds, self.comparison.repetition)}"


def decide(claims: Sequence[Comparison]) -> list[ClaimVerdict]:
    """Return the verdicts on all claims of a table, in their order.

    A claim whose adjusted p-value is at most ``ALPHA`` holds or fails, by the smaller of its two p-values.
    """
    smaller = [min(claim.p_for, claim.p_against) for claim in claims]
    verdicts = []
    for claim, p, adjusted in zip(claims, smaller, holm(smaller), strict=True):
        decided: Literal["holds", "fails"] = "holds" if claim.p_for < claim.p_against else "fails"
        verdict = decided if adjusted <= ALPHA else "undecided"
        verdicts.append(ClaimVerdict(claim, p, adjusted, verdict, ALPHA / len(claims)))
    return verdicts


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of tests (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    adjusted = [1.0] * len(p)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = largest
    return adjusted


def seeds_needed(claim: Comparison, alpha: float, target: float = POWER) -> int | None:
    """Return the fewest seeds per cell, more than now and at least 5, that decide a claim with probability ``target``.

    Returns None if more than ``MOST_SEEDS`` are needed or a value is not finite. A conjunction of k claims needs enough
    seeds to decide each of the claims with the probability 1 - (1 - target) / k.
    """
    if claim.parts:
        each = [seeds_needed(part, alpha, 1 - (1 - target) / len(claim.parts)) for part in claim.parts]
        return None if None in each else max(number for number in each if number is not None)
    if claim.deviations is None:
        return FEWEST_SEEDS if claim.seeds < FEWEST_SEEDS else None
    numbers = range(max(FEWEST_SEEDS, claim.seeds + 1), MOST_SEEDS + 1)
    found = bisect.bisect_left(numbers, target, key=lambda n: power(claim, n, alpha))
    return numbers[found] if found < len(numbers) else None


def power(claim: Comparison, n: int, alpha: float) -> float:
    """Return the probability that n seeds per cell decide a claim in the measured direction, if that effect is true.

    The noncentral t-distribution with the degrees of freedom of the t-test gives its power (Cohen, Statistical Power
    Analysis, 1988, section 2.5). A permutation test gets the same power, or 0 if its smallest possible p-value is
    above alpha. For TOST, the powers a and b of both tests give the lower bound a + b - 1.
    """
    from scipy import special, stats

    assert claim.difference is not None
    assert claim.deviations is not None
    permutations = {"permutation": math.comb(2 * n, n), "permutation of signs": 2**n}.get(claim.test)
    if permutations is not None and 2 / permutations > alpha:
        return 0.0
    size, margin = abs(claim.difference), claim.margin or 0.0
    error = math.hypot(*claim.deviations) / math.sqrt(n)
    if error == 0:
        return float(size != margin)
    freedom = degrees_of_freedom(*claim.deviations, n, n)
    shifts, level = ((size - margin,), alpha / 2) if size >= margin else ((margin - size, margin + size), alpha)
    critical = -special.stdtrit(freedom, level)
    # SciPy returns NaN for a noncentrality far above 1000, for which the power is 1.
    powers = [float(stats.nct.sf(critical, freedom, min(shift / error, 1000.0))) for shift in shifts]
    return sum(powers) - len(powers) + 1


def obstacle(test: str, a: Sample, b: Sample, margin: float | None = None) -> Comparison | None:
    """Return the comparison of two cells that cannot be tested, with the reason; None if the cells can be tested."""
    reasons = [not_finite_text(each) for each in (a, b) if each.not_finite]
    seeds = min(a.n, b.n)
    if seeds < FEWEST_SEEDS:
        reasons.append(f"fewer than {seeds_text(FEWEST_SEEDS, a.repetition)}")
    if not reasons:
        return None
    difference = None if a.mean is None or b.mean is None else a.mean - b.mean
    reason = "; ".join(reasons)
    return Comparison(test, seeds, difference, margin=margin, reason=reason, repetition=a.repetition)
