"""The event loop against a plain simulation that divides all links again at every instant, and laws of the loop."""

import math
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.events.loop import EventLoop
from runner.engine.events.storage import block_of


@dataclass
class Plain:
    """One activity of the plain simulation; the fields are those of ``EventLoop.add``."""

    delay_s: float
    amount: float
    links: tuple[int, ...]
    unit: int  # -1 for none
    rank: float
    after: tuple[int, ...]
    start: float = math.nan
    flows_from: float = math.nan
    end: float = math.nan
    left: float = 0.0

    def add_to(self, loop: EventLoop, first: int = 0, **more: Any) -> None:
        """Add this activity to a loop in which activity 0 of the case has the number ``first``."""
        after = [first + number for number in self.after]
        loop.add(self.delay_s, amount=self.amount, links=self.links, unit=self.unit, after=after, **more)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[float], list[Plain]]:
    """Draw the capacities of a few links, and activities on them and on two units."""
    capacities = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 7.5]), min_size=1, max_size=4))
    activities = []
    for number in range(draw(st.integers(1, 14))):
        links = draw(st.lists(st.integers(0, len(capacities) - 1), unique=True, max_size=3))
        activities.append(
            Plain(
                delay_s=draw(st.sampled_from([0.0, 0.0, 0.25, 1.0, 1.3])),
                amount=draw(st.sampled_from([0.0, 1.0, 2.5, 4.0])) if links else 0.0,
                links=tuple(links),
                unit=draw(st.sampled_from([-1, -1, 0, 1])),
                rank=draw(st.sampled_from([0.0, 1.0])),
                after=tuple(draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else (),
            )
        )
    return capacities, activities


def loop_of(capacities: list[float], activities: list[Plain], scale: float = 1.0, watched: int = 0) -> EventLoop:
    """Return the loop with these activities; every ``watched``-th is watched, and times are multiplied by ``scale``."""
    loop = EventLoop([capacity / scale for capacity in capacities], 2)
    for number, each in enumerate(activities):
        watch = watched > 0 and number % watched == 0
        replace(each, delay_s=each.delay_s * scale).add_to(loop, rank=each.rank, watched=watch)
    return loop


def ends_of(loop: EventLoop, first: int = 0) -> list[float]:
    """Return the ends of all activities from number ``first`` on."""
    ends: list[float] = loop.times(first, len(loop))[1].tolist()
    return ends


def simulate_plainly(capacities: list[float], activities: list[Plain]) -> float:
    """Set start and end of all activities, and return the largest rate of any link relative to its capacity."""
    now, fullest = 0.0, 0.0
    while True:
        _settle(activities, now)
        if not any(math.isnan(each.end) for each in activities):
            break
        flowing = [a for a in activities if not math.isnan(a.flows_from) and math.isnan(a.end)]
        rates = _shares(capacities, flowing)
        for link, capacity in enumerate(capacities):
            used = sum(rate for flow, rate in zip(flowing, rates, strict=True) if link in flow.links)
            fullest = max(fullest, used / capacity)
        delayed = [
            a.start + a.delay_s
            for a in activities
            if not math.isnan(a.start) and math.isnan(a.flows_from) and math.isnan(a.end)
        ]
        following = min([*delayed, *(now + flow.left / rate for flow, rate in zip(flowing, rates, strict=True))])
        for flow, rate in zip(flowing, rates, strict=True):
            flow.left -= rate * (following - now)
        now = following
    return fullest


def _settle(activities: list[Plain], now: float) -> None:
    """End and start everything that ends or starts at ``now``."""
    changed = True
    while changed:
        changed = False
        for each in activities:
            if math.isnan(each.end) and not math.isnan(each.flows_from) and each.left <= 1e-9:
                each.end, changed = now, True
            if math.isnan(each.flows_from) and math.isnan(each.end) and each.start + each.delay_s <= now + 1e-12:
                changed = True
                if each.amount:
                    each.flows_from, each.left = now, each.amount
                else:
                    each.end = now
        ready = [
            (each.rank, number)
            for number, each in enumerate(activities)
            if math.isnan(each.start) and all(not math.isnan(activities[before].end) for before in each.after)
        ]
        # Units choose after everything else that happens at this time.
        alone = [number for _, number in ready if activities[number].unit < 0]
        for number in alone:
            activities[number].start, changed = now, True
        if changed:
            continue
        for _, number in sorted(ready):
            each = activities[number]
            busy = [a for a in activities if a.unit == each.unit and not math.isnan(a.start) and math.isnan(a.end)]
            if not busy:
                each.start, changed = now, True


def _shares(capacities: list[float], flowing: list[Plain]) -> list[float]:
    """Return max-min fair rates by progressive filling."""
    rates: dict[int, float] = {}
    while len(rates) < len(flowing):
        shares = {}
        for link, capacity in enumerate(capacities):
            users = [k for k, flow in enumerate(flowing) if link in flow.links]
            free = [k for k in users if k not in rates]
            if free:
                shares[link] = (capacity - sum(rates[k] for k in users if k in rates)) / len(free)
        narrow = min(shares, key=shares.__getitem__)
        for k, flow in enumerate(flowing):
            if k not in rates and narrow in flow.links:
                rates[k] = shares[narrow]
    return [rates[k] for k in range(len(flowing))]


@given(cases())
def test_times_equal_those_of_a_plain_simulation(case: tuple[list[float], list[Plain]]) -> None:
    capacities, activities = case
    loop = loop_of(capacities, activities)
    loop.run()
    loop.require_ended()
    fullest = simulate_plainly(capacities, activities)
    expected = [each.start for each in activities], [each.end for each in activities]
    np.testing.assert_allclose(loop.times(0, len(loop)), expected, rtol=1e-9, atol=1e-9)
    assert fullest <= 1.0 + 1e-9
    amounts = [sum(each.amount for each in activities if link in each.links) for link in range(len(capacities))]
    np.testing.assert_allclose(loop.carried, amounts)
    busy = [sum(each.end - each.start for each in activities if each.unit == unit) for unit in range(2)]
    np.testing.assert_allclose(loop.busy_s, busy, atol=1e-9)


@given(cases())
def test_slower_hardware_multiplies_every_time(case: tuple[list[float], list[Plain]]) -> None:
    slow, fast = loop_of(*case, scale=2.0), loop_of(*case)
    slow.run()
    fast.run()
    # A factor of 2 changes no rounding.
    assert ends_of(slow) == [2.0 * end for end in ends_of(fast)]


@given(cases(), st.integers(1, 5))
def test_a_run_in_parts_equals_one_run(case: tuple[list[float], list[Plain]], every: int) -> None:
    capacities, activities = case
    whole, parts = loop_of(capacities, activities), loop_of(capacities, activities, watched=every)
    assert whole.run() == []
    ended = list(iter(parts.run, []))
    ends = ends_of(whole)
    assert ends_of(parts) == ends
    watched = range(0, len(activities), every)
    assert list(chain(*ended)) == sorted(watched, key=lambda number: (ends[number], number))
    assert len(ended) == len({ends[number] for number in watched})


@given(cases(), st.integers(1, 5))
def test_a_loop_that_drops_ended_activities_gives_the_same_times(
    case: tuple[list[float], list[Plain]], every: int
) -> None:
    capacities, activities = case
    kept, dropping = EventLoop(capacities, 2), EventLoop(capacities, 2)
    ended: dict[EventLoop, list[tuple[list[int], float]]] = {kept: [], dropping: []}
    # The same activities again and again, with their numbers moved, and runs in between.
    for _ in range(8):
        dropping.forget_before(len(dropping))
        for loop, found in ended.items():
            first = len(loop)
            for number, each in enumerate(activities):
                each.add_to(loop, first, watched=True)
                if number % every == 0:
                    found.append((loop.run(), loop.now))
    for loop, found in ended.items():
        found += [(numbers, loop.now) for numbers in iter(loop.run, [])]
    assert ended[dropping] == ended[kept]
    assert sorted(number for numbers, _ in ended[kept] for number in numbers) == list(range(8 * len(activities)))
    assert (dropping.busy_s.tolist(), dropping.carried.tolist()) == (kept.busy_s.tolist(), kept.carried.tolist())
    assert len(kept) == len(dropping)


@given(cases(), st.sets(st.integers(1, 13)))
def test_activities_of_blocks_have_the_times_of_single_activities(
    case: tuple[list[float], list[Plain]], cuts: set[int]
) -> None:
    capacities, activities = case
    single, blocks = EventLoop(capacities, 2), EventLoop(capacities, 2)
    numbers = sorted({0, len(activities), *cuts} - set(range(len(activities) + 1, 14)))
    for rank, (first, end) in enumerate(pairwise(numbers)):
        columns, links, after = [], [], []
        for number in range(first, end):
            each = activities[number]
            each.add_to(single, rank=-rank, watched=True)
            columns.append((each.delay_s, each.amount, 1, each.unit, True))
            links.append(each.links)
            after.append([before - first for before in each.after])
        assert blocks.add_block(block_of(columns, links, after), -rank) == first
    assert list(iter(blocks.run, [])) == list(iter(single.run, []))
    assert (ends_of(blocks), blocks.carried.tolist()) == (ends_of(single), single.carried.tolist())


@given(cases(), st.floats(0.0, 1e6))
def test_a_restarted_loop_repeats_every_time_bit_for_bit(case: tuple[list[float], list[Plain]], before: float) -> None:
    capacities, activities = case
    fresh, used = loop_of(capacities, activities), EventLoop(capacities, 2)
    fresh.run()
    for _ in range(2):
        used.add(before, unit=0)
        used.run()
        assert used.idle
        used.restart()
        first = len(used)
        for each in activities:
            each.add_to(used, first, rank=each.rank)
        assert not used.idle
        used.run()
    assert ends_of(used, first) == ends_of(fresh)
    assert (used.busy_s.tolist(), used.carried.tolist()) == (fresh.busy_s.tolist(), fresh.carried.tolist())


def test_equal_flows_can_be_one_flow_with_a_weight() -> None:
    def ends(weights: list[int]) -> list[float]:
        loop = EventLoop([6.0, 2.0], 0)
        for weight in weights:
            loop.add(0.5, amount=4.0, links=[0, 1], weight=weight)
        loop.add(0.0, amount=12.0, links=[0])
        loop.run()
        return ends_of(loop)

    together, single = ends([3]), ends([1, 1, 1])
    # Link 1 gives 2/3 to each flow, so three flows of 4 take 6 seconds; 12 - 0.5 * 6 remain for the rate 6 - 2.
    assert single == pytest.approx([6.5, 6.5, 6.5, 0.5 + 9.0 / 4.0])
    assert together == pytest.approx([single[0], single[3]])


def test_an_activity_can_be_added_when_another_has_ended() -> None:
    loop = EventLoop([1.0], 1)
    first = loop.add(2.0, unit=0, watched=True)
    background = loop.add(amount=10.0, links=[0])
    assert (loop.run(), loop.now) == ([first], 2.0)
    last = loop.add(amount=1.0, links=[0], after=[first])
    loop.run()
    # Both flows have rate 1/2 from second 2 on.
    assert (ends_of(loop)[last], ends_of(loop)[background]) == (4.0, 11.0)


def test_activities_that_wait_for_each_other_are_reported() -> None:
    loop = EventLoop([], 0)
    loop.add_block(block_of([(0.0, 0.0, 1, -1, False)] * 2, [(), ()], [(1,), (0,)]), 0.0, (), np.zeros(0, np.int64))
    loop.run()
    with pytest.raises(ValueError, match=r"^2 activities never end, the first is activity 0: they form a cycle$"):
        loop.require_ended()


@pytest.mark.parametrize("capacity", [0.0, -1.0, math.inf, math.nan])
def test_capacities_are_positive_and_finite(capacity: float) -> None:
    with pytest.raises(ValueError, match=r"link 1: capacity .*, expected a positive finite amount per second"):
        EventLoop([1.0, capacity], 0)
