"""The comparison of simulated with real steps: its configurations, and its page."""

from pathlib import Path

import pytest

from benchmarks.experiments import configuration
from benchmarks.simulator_configurations import (
    DRAWN_BATCHES,
    SLOWEST,
    VARIANTS,
    Configuration,
    Setting,
    drawn,
    profiled,
)
from benchmarks.simulator_page import Compared, order_of, page, plot


def test_a_seed_draws_all_strategies_and_a_larger_number_continues() -> None:
    found = drawn(1, 40)
    assert found == drawn(1, 40)
    assert drawn(1, 8) == found[:8]
    assert drawn(2, 40) != found
    assert len(set(found)) == len(found)
    assert {each.strategy for each in found} == set(VARIANTS)
    assert {each.setting.case for each in found} == set(DRAWN_BATCHES)
    assert {each.workers for each in found} == {1, 2, 3, 4}
    settings = {(each.setting.case, each.setting.network) for each in drawn(1, 1000)}
    assert ("lenet", SLOWEST) in settings
    assert ("alexnet", SLOWEST) not in settings


def test_no_drawn_configuration_is_in_the_profile() -> None:
    recorded, own = ({(each.setting.case, each.setting.batch) for each in some} for some in (profiled(), drawn(1, 60)))
    assert not own & recorded


def test_configurations_compose() -> None:
    for each in drawn(3, 6):
        config = configuration(each.overrides())
        assert config.parallelism.name == each.strategy
        assert config.train.batch_size == each.setting.batch


def compared(strategy: str, real: list[float], simulated: float, failure: str = "") -> Compared:
    return Compared(
        Configuration(Setting("mlp", 24), strategy), real, simulated, {"process": {"measured": 1.0}}, failure
    )


def test_the_page_states_errors_order_spread_and_failures(tmp_path: Path) -> None:
    steady = [compared("single", [0.010, 0.0101], 0.0101), compared("model", [0.020, 0.020], 0.0098)]
    apart, failed = compared("hybrid", [0.010, 0.020], 0.015), compared("sync_data", [], 0.0, "no answer")
    order = order_of(steady)
    assert (order.pairs, len(order.wrong)) == (1, 1)
    text = page([*steady, apart, failed], "a command", tmp_path / "plot.png")
    assert "2 configurations: mean error 25.7%, worst 51.0%. Of 1 pairs" in text
    assert "| mlp, batch 24 | hybrid 1 | 15 | 66.7% | 15 | +0.0% | 100% |" in text
    assert "- mlp, batch 24, sync_data 1: no answer" in text
    plot([*steady, apart, failed], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_runs_that_never_differ_have_no_error() -> None:
    assert compared("single", [0.01], 0.011).error == pytest.approx(0.1)
