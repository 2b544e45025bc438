"""What is hidden of an exchange, from times made by hand."""

import math
from collections.abc import Sequence

import pytest

from benchmarks.experiments import configuration
from benchmarks.overlap import (
    BLOCKING,
    CASE,
    NO_NETWORK,
    OVERLAP_CASES,
    OVERLAPPED,
    WAYS,
    WORKERS,
    OverlapResult,
    require_same_losses,
)
from benchmarks.overlap_table import overlap_section
from benchmarks.process import SubjectError
from benchmarks.report import Report
from runner.training.build import build
from tests.benchmarks.made import LOSSES, subject


def result(free: Sequence[float], blocking: Sequence[float], overlapped: Sequence[float], turn: int) -> OverlapResult:
    times = {NO_NETWORK: free, BLOCKING: blocking, OVERLAPPED: overlapped}
    ways = tuple(subject(name, times[name], versions={"numpy": "2"}) for name in WAYS)
    return OverlapResult("sharded_reduce", "net, batch 4", 4, "100 Mbit/s, 0.5 ms", turn, ways)


def test_hidden_time_is_part_of_the_cost_of_a_blocking_exchange() -> None:
    assert result([100, 100, 900], [140, 140, 140], [110, 110, 50], turn=3).hidden == pytest.approx(0.75)


def test_the_spread_is_that_of_rounds() -> None:
    found = result([100] * 6, [140] * 6, [100, 100, 120, 120, 140, 140], turn=2)
    assert found.hidden_quartiles == pytest.approx((0.25, 0.75))
    assert result([100], [140], [110], turn=1).hidden_quartiles == pytest.approx((0.75, 0.75))


def test_a_network_that_costs_nothing_hides_nothing() -> None:
    assert math.isnan(result([100], [100], [90], turn=1).hidden)


def test_the_section_has_medians_quartiles_and_hidden_time() -> None:
    found = result([100, 102, 104], [140, 142, 144], [106, 108, 110], turn=3)
    row = "| sharded_reduce | 102 (101-103) | 142 (141-143) | 108 (107-109) | 0.85 | 0.85-0.85 |"
    assert row in overlap_section([found])
    assert "net, batch 4, 4 workers of one thread each" in overlap_section([found])
    report = Report({"CPU": "one"}, overlaps=[found])
    assert "versions: numpy 2" in report.markdown()
    assert "Phases:" not in report.markdown()


def test_ways_that_fail_or_compute_something_else_are_refused() -> None:
    same = [subject(name) for name in WAYS]
    require_same_losses(same)
    with pytest.raises(SubjectError, match=r"^overlapped: ended with code 1$"):
        require_same_losses([*same[:2], subject(OVERLAPPED, failure="ended with code 1")])
    other = (*LOSSES[:2], LOSSES[2] + 1e-7)
    with pytest.raises(SubjectError, match=r"^overlapped: losses .* expected those of no network"):
        require_same_losses([*same[:2], subject(OVERLAPPED, losses=other)])


@pytest.mark.parametrize("combine", OVERLAP_CASES.values())
def test_variants_differ_in_waits_and_held_back_transfers_only(combine: str) -> None:
    workers = ("parallelism=sync_data", f"parallelism.workers={WORKERS}", f"parallelism.combine={combine}")
    free, blocking, overlapped = (
        build(configuration(CASE.overrides(threads=1, parallelism=(*workers, *overrides))))
        for overrides in WAYS.values()
    )
    assert free.program == overlapped.program
    assert free.cluster == overlapped.cluster == blocking.cluster
    assert free.emulation is None
    assert blocking.emulation == overlapped.emulation is not None
    assert len(blocking.program.graph) > len(overlapped.program.graph)
