"""Claims against SciPy, statsmodels, enumeration and published numbers; laws of their verdicts."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import gamma
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestIndPower, TTestPower
from statsmodels.stats.weightstats import CompareMeans, ttost_ind, ttost_paired

from runner.tables.claims import Comparison, decide, equivalent, every, holm, lower, power, seeds_needed
from runner.tables.statistics import Sample, summary
from runner.tables.two_samples import differences, hedges_g, permutation_p

RNG = np.random.default_rng(16)
PAIRS = [
    (RNG.normal(0, spread, n).tolist(), RNG.normal(shift, 1, m).tolist())
    for n, m, spread, shift in [(5, 5, 1, 1), (5, 12, 3, -2), (30, 6, 0.1, 0), (8, 8, 1e-3, 0.5)]
]
TESTS: dict[str, Callable[[Sample, Sample], Comparison]] = {
    "welch": lower,
    "permutation": lambda a, b: lower(a, b, "permutation"),
    "TOST": lambda a, b: equivalent(a, b, 2.0),
    "all": lambda a, b: every([lower(a, b), equivalent(a, b, 2.0)]),
}

cells = st.lists(st.integers(-3, 3).map(float), min_size=4, max_size=6)
tests = st.sampled_from(sorted(TESTS))
p_values = st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.05, 1.0])), min_size=1, max_size=8)


def samples(a: list[float], b: list[float]) -> tuple[Sample, Sample]:
    return summary(a), summary(b)


def smaller_p(claim: Comparison) -> float:
    return min(claim.p_for, claim.p_against)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_welchs_test_equals_scipy_and_statsmodels(a: list[float], b: list[float]) -> None:
    ours, theirs = lower(*samples(a, b)), CompareMeans.from_data(a, b)
    scipys = stats.ttest_ind(a, b, equal_var=False)
    assert smaller_p(ours) == pytest.approx(scipys.pvalue, rel=1e-10)
    assert smaller_p(ours) == pytest.approx(theirs.ttest_ind(usevar="unequal")[1], rel=1e-10)
    assert ours.p_for == (1.0 if scipys.statistic > 0 else pytest.approx(scipys.pvalue))
    bounds = (ours.interval.low, ours.interval.high)
    assert bounds == pytest.approx(theirs.tconfint_diff(0.05, usevar="unequal"))
    assert bounds == pytest.approx(scipys.confidence_interval(0.95))
    assert ours.interval.confidence == 0.95
    assert ours.difference == pytest.approx(np.mean(a) - np.mean(b))
    assert (ours.test, ours.seeds, ours.reason) == ("welch", min(len(a), len(b)), "")


@pytest.mark.parametrize("margin", [0.01, 0.5, 1.0, 10.0])
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_equivalence_equals_statsmodels_and_scipy(a: list[float], b: list[float], margin: float) -> None:
    ours = equivalent(*samples(a, b), margin)
    assert ours.p_for == pytest.approx(ttost_ind(a, b, -margin, margin, usevar="unequal")[0], rel=1e-9)
    outside = [
        stats.ttest_ind(np.subtract(a, margin), b, equal_var=False, alternative="greater").pvalue,
        stats.ttest_ind(np.add(a, margin), b, equal_var=False, alternative="less").pvalue,
    ]
    assert ours.p_against == pytest.approx(min(1, 2 * min(outside)), rel=1e-9)
    theirs = CompareMeans.from_data(a, b).tconfint_diff(0.10, usevar="unequal")
    assert (ours.interval.low, ours.interval.high) == pytest.approx(theirs)
    assert (ours.interval.confidence, ours.margin, ours.test) == (0.9, margin, "TOST")
    # Verdicts and intervals agree: inside at 90 %, wholly outside at 95 %.
    low, high = lower(*samples(a, b)).interval.low, lower(*samples(a, b)).interval.high
    [found] = decide([ours])
    inside, beyond = -margin <= theirs[0] and theirs[1] <= margin, low > margin or high < -margin
    assert found.verdict == ("holds" if inside else "fails" if beyond else "undecided")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        # Accuracies with many ties, whose sums differ in the last digit.
        ([0.91, 0.92, 0.91, 0.93, 0.92], [0.93, 0.92, 0.94, 0.93, 0.91]),
        ([0.1, 0.2, 0.3, 0.7, 0.1], [0.3, 0.1, 0.2, 0.2, 0.1, 0.3]),
        ([1e6 + 0.1, 1e6 + 0.2, 1e6, 1e6 + 0.2, 1e6 + 0.4], [1e6 + 0.2, 1e6 + 0.3, 1e6 + 0.4, 1e6 + 0.5, 1e6 + 0.3]),
        ([5.0] * 5, [6.0] * 5),
        ([5.0] * 5, [5.0] * 6),
    ],
)
def test_the_permutation_test_equals_an_exact_enumeration(a: list[float], b: list[float]) -> None:
    pooled = [Fraction(repr(value)) for value in [*a, *b]]

    def difference(first: tuple[int, ...]) -> Fraction:
        part = sum(pooled[index] for index in first)
        return part / len(a) - (sum(pooled) - part) / len(b)

    seen = difference(tuple(range(len(a))))
    every_one = [difference(first) for first in itertools.combinations(range(len(pooled)), len(a))]
    low, high = (sum(each <= seen for each in every_one), sum(each >= seen for each in every_one))
    assert permutation_p(*samples(a, b)) == pytest.approx(min(1, 2 * Fraction(min(low, high), len(every_one))))


def test_random_permutations_estimate_the_exact_test() -> None:
    a, b = RNG.normal(0, 1, 10), RNG.normal(0.9, 1, 10)
    pooled, chosen = np.concatenate([a, b]), np.array(list(itertools.combinations(range(20), 10)))
    exact = 2 * np.mean(pooled[chosen].sum(axis=1) <= a.sum() + 1e-9)
    assert 0.01 < exact < 0.2
    found = permutation_p(*samples(a.tolist(), b.tolist()))
    assert abs(found - exact) < 4 * 2 * math.sqrt(exact / 2 * (1 - exact / 2) / 50_000)
    assert found == permutation_p(*samples(b.tolist(), a.tolist()))


def of_rounds(a: list[float], b: list[float]) -> Sample:
    return differences(dict(enumerate(a)), dict(enumerate(b)))


@pytest.mark.parametrize("n", [5, 8, 15])
@pytest.mark.parametrize("shift", [-1.0, 0.0, 0.3])
def test_rounds_are_compared_as_scipy_and_statsmodels_compare_pairs(n: int, shift: float) -> None:
    rng = np.random.default_rng(n)
    a = rng.normal(5, 2, n)  # rounds vary more than the configurations differ
    b = a - shift + rng.normal(0, 0.3, n)
    pairs = of_rounds(a.tolist(), b.tolist())
    expected = stats.ttest_rel(a, b)
    found = lower(*samples(a.tolist(), b.tolist()), of_rounds=pairs)
    assert found.test == "paired t-test"
    assert smaller_p(found) == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx(expected.confidence_interval(), rel=1e-9)
    same = equivalent(*samples(a.tolist(), b.tolist()), 0.2, pairs)
    assert same.p_for == pytest.approx(max(each[1] for each in ttost_paired(a, b, -0.2, 0.2)[1:]), rel=1e-9)

    flipped = lower(*samples(a.tolist(), b.tolist()), "permutation", pairs)
    assert flipped.test == "permutation of signs"
    signs = np.array(list(itertools.product([-1, 1], repeat=n)))
    means = abs(signs @ np.array(pairs.values))
    assert smaller_p(flipped) == pytest.approx(np.mean(means >= means[-1] - 1e-12))


def test_rounds_are_paired_by_their_number_and_by_nothing_else() -> None:
    a, b = {1: 1.0, 2: 2.0, 3: 3.0, 4: math.nan}, {3: 3.5, 2: 2.5, 4: 1.0, 1: 1.5, 9: 7.0}
    assert differences({1: 0.3}, {1: 0.1}).values == (0.2,)
    assert differences({**a, 4: 4.0}, {**b, 4: 4.5}).values == (-0.5,) * 4
    assert differences(a, b).not_finite == 1
    equal = of_rounds([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    found = lower(*samples([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), of_rounds=equal)
    assert (found.test, found.p_for) == ("permutation of signs", pytest.approx(2 / 2**6)), "t needs a spread"


@pytest.mark.parametrize("n", [5, 8, 15])
@pytest.mark.parametrize("effect", [0.2, 0.8, 1.2])
def test_the_power_for_rounds_equals_statsmodels(n: int, effect: float) -> None:
    paired = Comparison("paired t-test", 2, effect, (1.0, 0.0))
    expected = TTestPower().power(effect, n, 0.025, alternative="larger")
    assert power(paired, n, 0.05) == pytest.approx(expected, rel=1e-9)
    assert power(Comparison("permutation of signs", 2, effect, (1.0, 0.0)), 5, 0.05) == 0


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_hedges_g_follows_its_formula(a: list[float], b: list[float]) -> None:
    x, y, n, m = np.var(a, ddof=1), np.var(b, ddof=1), len(a), len(b)
    freedom = (n - 1) * (m - 1) * (x + y) ** 2 / ((m - 1) * x**2 + (n - 1) * y**2)
    factor = gamma(freedom / 2) / (math.sqrt(freedom / 2) * gamma((freedom - 1) / 2))
    cohens_d = (np.mean(a) - np.mean(b)) / math.sqrt((x + y) / 2)
    assert hedges_g(*samples(a, b)) == pytest.approx(factor * cohens_d)


def test_hedges_g_without_spread() -> None:
    assert hedges_g(*samples([1.0] * 5, [1.0] * 5)) == 0.0
    assert hedges_g(*samples([1.0] * 5, [2.0] * 5)) is None
    assert hedges_g(*samples([1.0] * 5, [2.0, 3.0, 4.0, 5.0, 6.0])) < -1


@given(p_values)
@example([0.01, 0.04, 0.03, 0.005])
def test_holm_equals_statsmodels_and_lies_between_bonferroni_and_no_correction(p: list[float]) -> None:
    ours = holm(p)
    with patch("gc.collect"):  # statsmodels collects garbage in each call, which takes 0.2 s
        theirs = multipletests(p, method="holm")[1]
    assert ours == pytest.approx(theirs, abs=1e-15)
    assert all(single <= each <= min(1.0, len(p) * single) for single, each in zip(p, ours, strict=True))


@given(p_values, st.data())
def test_a_smaller_p_value_never_raises_an_adjusted_one(p: list[float], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(p) - 1))
    less = [*p[:index], data.draw(st.floats(0, p[index])), *p[index + 1 :]]
    assert all(after <= before for after, before in zip(holm(less), holm(p), strict=True))


def claim(difference: float, deviations: tuple[float, float] = (1.0, 1.0), margin: float | None = None) -> Comparison:
    return Comparison("welch", 2, difference, deviations, margin=margin)


# Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, table 2.4.1: d, n at a power of 0.8.
@pytest.mark.parametrize(("effect", "n"), [(0.2, 393), (0.5, 64), (0.8, 26), (1.0, 17), (1.2, 12), (1.4, 9)])
def test_the_seeds_needed_are_those_of_cohens_table(effect: float, n: int) -> None:
    assert abs(seeds_needed(claim(effect), 0.05) - n) <= 1
    assert seeds_needed(claim(-effect * 7, (7.0, 7.0)), 0.05) == seeds_needed(claim(effect), 0.05)


@pytest.mark.parametrize("n", [5, 8, 30, 1000])
@pytest.mark.parametrize("effect", [0.05, 0.5, 1.5, 20.0])
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_the_power_equals_statsmodels(n: int, effect: float, alpha: float) -> None:
    theirs = TTestIndPower().power(effect, n, alpha / 2, alternative="larger")
    assert power(claim(effect), n, alpha) == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("effect", [1e-300, 0.04, 0.1, 0.5, 3.0, 1e300])
@pytest.mark.parametrize("margin", [None, 0.3])
def test_the_seeds_needed_are_the_fewest(effect: float, margin: float | None) -> None:
    case = claim(effect, (1.0, 0.5), margin)
    found = seeds_needed(case, 0.01)
    if found is None:
        assert power(case, 1000, 0.01) < 0.8
    else:
        assert power(case, found, 0.01) >= 0.8
        assert found == 5 or power(case, found - 1, 0.01) < 0.8


def test_an_open_claim_needs_more_seeds_than_it_has() -> None:
    assert seeds_needed(Comparison("permutation", 30, 1.0, (0.1, 0.1)), 0.05) == 31


NAN_CELL = [1.0, 2.0, 3.0, 4.0, math.nan]
LOW, HIGH = [1.0, 2.0, 3.0, 4.0, 5.0], [11.0, 12.0, 13.0, 14.0, 15.0]


@pytest.mark.parametrize(
    ("a", "b", "text", "reason", "needed"),
    [
        (LOW, HIGH, "holds", "", None),
        (HIGH, LOW, "fails", "", None),
        (LOW, [2.0, 3.0, 4.0, 5.0, 6.0], "undecided at 5 seeds", "", 41),
        (LOW, LOW, "undecided at 5 seeds", "", None),
        (LOW, [3.001, 3.0, 3.0, 3.0, 3.0], "undecided at 5 seeds", "", None),
        (LOW[:4], HIGH, "undecided at 4 seeds", "fewer than 5 seeds", 5),
        (LOW, HIGH[:1], "undecided at 1 seed", "fewer than 5 seeds", 5),
        (LOW, NAN_CELL, "undecided at 5 seeds", "1 of 5 values not finite", None),
        (NAN_CELL, [-math.inf], "undecided at 1 seed", "X; 1 of 1 values not finite; fewer than 5 seeds", 5),
        ([1.0] * 5, [2.0] * 5, "holds", "", None),
        ([2.0] * 5, [1.0] * 5, "fails", "", None),
        ([1.0] * 5, [1.0] * 5, "undecided at 5 seeds", "", None),
        ([1.0] * 5, HIGH, "holds", "", None),
        ([0.1] * 5, [0.1] * 9, "undecided at 5 seeds", "", None),
    ],
)
def test_a_test_decides_a_claim(a: list[float], b: list[float], text: str, reason: str, needed: int | None) -> None:
    for test in ("welch", "permutation"):
        [found] = decide([lower(*samples(a, b), test)])
        assert found.text == text
        assert found.comparison.reason == reason.replace("X", "1 of 5 values not finite")
        assert found.seeds_needed == needed
        assert (found.p == 1.0) if reason else (found.p == smaller_p(found.comparison))


def test_two_cells_without_spread_are_compared_by_permutation() -> None:
    found = lower(*samples([1.0] * 5, [2.0] * 5))
    assert (found.test, found.p_for) == ("permutation", pytest.approx(2 / math.comb(10, 5)))
    assert lower(*samples([1.0] * 5, [2.0, 2.0, 2.0, 2.0, 3.0])).test == "welch"
    # With 40 claims, the smallest p-value that five seeds can have is too large; 40 * 2 / comb(14, 7) is below 0.05.
    [first, *_] = decide([found, *[lower(*samples(LOW, LOW))] * 39])
    assert (first.text, first.seeds_needed) == ("undecided at 5 seeds", 7)


@pytest.mark.parametrize(
    ("a", "b", "margin", "text"),
    [
        (LOW, HIGH, 20.0, "holds"),
        (LOW, HIGH, 1.0, "fails"),
        (LOW, HIGH, 9.0, "undecided at 5 seeds"),
        (LOW, HIGH, 10.0, "undecided at 5 seeds"),
        ([1.0] * 5, [1.5] * 5, 0.6, "holds"),
        ([1.0] * 5, [1.5] * 5, 0.4, "fails"),
        ([1.0] * 5, [1.5] * 5, 0.5, "undecided at 5 seeds"),
        (LOW, LOW[:4], 100.0, "undecided at 4 seeds"),
        (LOW, NAN_CELL, 100.0, "undecided at 5 seeds"),
    ],
)
def test_an_equivalence_claim_is_decided_by_its_margin(a, b, margin: float, text: str) -> None:
    assert decide([equivalent(*samples(a, b), margin)])[0].text == text


@pytest.mark.parametrize(
    ("p_for", "p_against", "p", "verdict"),
    [
        ([0.04, 0.05, 0.001], [1, 1, 1], 0.05, "holds"),
        ([0.04, 0.06, 0.001], [1, 1, 1], 0.06, "undecided"),
        ([0.04, 1, 1], [1, 0.02, 1], 0.06, "undecided"),
        ([0.001, 1, 1], [1, 0.01, 1], 0.03, "fails"),
        ([1, 1, 1], [1, 1, 0.6], 1, "undecided"),
    ],
)
def test_a_conjunction_needs_all_parts_and_is_refuted_by_one(p_for, p_against, p: float, verdict: str) -> None:
    parts = [
        Comparison("welch", 7 - index, p_for=each, p_against=other)
        for index, (each, other) in enumerate(zip(p_for, p_against, strict=True))
    ]
    [found] = decide([every(parts)])
    assert (found.p, found.verdict) == (pytest.approx(p), verdict)
    assert (found.comparison.seeds, found.comparison.parts) == (5, tuple(parts))


def test_a_conjunction_needs_the_seeds_that_decide_all_parts() -> None:
    near, far = claim(0.5), claim(3.0)
    assert seeds_needed(every([near, far]), 0.05) == seeds_needed(near, 0.05, 0.9) > seeds_needed(near, 0.05)
    assert seeds_needed(every([far, claim(1e-3)]), 0.05) is None


def test_a_conjunction_with_a_part_that_cannot_be_tested_is_undecided() -> None:
    missing = lower(*samples(LOW, HIGH[:4]))
    [found] = decide([every([lower(*samples(LOW, HIGH)), missing, missing])])
    assert (found.text, found.comparison.reason) == ("undecided at 4 seeds", "fewer than 5 seeds")


def test_a_claim_that_cannot_be_tested_counts_in_the_correction() -> None:
    tested, missing = Comparison("welch", 5, p_for=0.03), lower(*samples(LOW, HIGH[:1]))
    assert [each.text for each in decide([tested])] == ["holds"]
    [first, second] = decide([tested, missing])
    assert (first.p, first.p_adjusted, first.text) == (0.03, 0.06, "undecided at 5 seeds")
    assert second.text == "undecided at 1 seed"
    assert decide([]) == []


@given(cells, cells)
def test_swapping_the_cells_swaps_holds_and_fails(a: list[float], b: list[float]) -> None:
    opposite = {"holds": "fails", "fails": "holds", "undecided": "undecided"}
    for name in ("welch", "permutation", "TOST"):
        first, second = (decide([TESTS[name](*pair)])[0] for pair in (samples(a, b), samples(b, a)))
        assert second.p_adjusted == first.p_adjusted
        assert second.seeds_needed == first.seeds_needed
        assert second.verdict == (first.verdict if name == "TOST" else opposite[first.verdict])


@given(cells, cells, tests, st.randoms())
def test_the_order_of_the_seeds_changes_no_claim(a, b, test: str, random) -> None:
    mixed = samples(random.sample(a, len(a)), random.sample(b, len(b)))
    assert TESTS[test](*mixed) == TESTS[test](*samples(a, b))


@given(cells, cells, st.integers(-1000, 1000), st.sampled_from([0.125, 4.0]), st.integers(1, 3))
def test_shift_and_scale_change_no_verdict_on_a_claim(a, b, shift: int, scale: float, margin: int) -> None:
    moved = samples(*([(value + shift) * scale for value in cell] for cell in (a, b)))
    for test in (lower, TESTS["permutation"]):
        before, after = decide([test(*samples(a, b))])[0], decide([test(*moved)])[0]
        assert (after.verdict, after.seeds_needed) == (before.verdict, before.seeds_needed)
        assert after.p == pytest.approx(before.p, rel=1e-6)
    before, after = equivalent(*samples(a, b), margin), equivalent(*moved, margin * scale)
    assert (after.p_for, after.p_against) == pytest.approx((before.p_for, before.p_against), rel=1e-6)


finite = st.floats(-1e149, 1e149)


@given(*[st.lists(st.one_of(finite, st.just(1.0), st.floats()), min_size=1, max_size=7)] * 2, st.floats(1e-300, 1e300))
@example([1e149] * 5, [-1e149] * 5, 1e300)
@example([0.0, 5e-324, 0.0, 0.0, 0.0], [5e-324] * 5, 1e-300)
@example([1.0, 1.0, 1.0, 1.0, 1.0000000000000002], [1.0] * 5, 1e-300)
def test_any_values_give_probabilities_and_no_warning(a: list[float], b: list[float], margin: float) -> None:
    pair = samples(a, b)
    claims = [lower(*pair), lower(*pair, "permutation"), equivalent(*pair, margin)]
    for found in decide([*claims, every(claims)]):
        assert 0 <= found.p <= found.p_adjusted <= 1
        assert found.seeds_needed is None or 5 <= found.seeds_needed <= 1000
        assert found.comparison.reason or found.comparison.parts or math.isfinite(found.comparison.difference)
