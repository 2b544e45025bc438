"""The comparison of the first choice of ``runner recommend`` with all strategies."""

from pathlib import Path

import pytest

from benchmarks.experiments import configuration
from benchmarks.recommend import MODELS, Setting, Tried, page, settings


def tried(name: str, simulated: float, *seconds: float, failure: str = "") -> Tried:
    return Tried((f"parallelism={name}", "parallelism.workers=2"), simulated, list(seconds), failure)


def test_ten_models_on_two_networks_have_several_candidates() -> None:
    found = list(settings(["mlp", "lenet", "alexnet"], Path("profile.json")))
    assert len(MODELS) == 10
    assert [each.name.partition(", ")[0] for each in found] == ["mlp", "mlp", "lenet", "lenet", "alexnet"]
    assert len({each.name for each in found}) == 5
    for each in found:
        assert len(each.tried) > 5
        assert configuration([*each.overrides, *each.tried[1].overrides]).cluster.emulate


def test_the_first_choice_and_the_fastest_are_run_again() -> None:
    first, fast, close = tried("model", 0.001, 0.030), tried("single", 0.002, 0.010), tried("hybrid", 0.003, 0.0114)
    far, failed = tried("async_data", 0.004, 0.0116), tried("sync_data", 0.005, failure="no answer")
    assert Setting("mlp", (), [far, failed, close, fast, first]).contenders() == [close, fast, first]


@pytest.mark.parametrize(("ms", "close"), [(10.4, 1), (10.6, 0)])
def test_the_page_states_the_ratio_of_the_first_choice_to_the_fastest(ms: float, close: int) -> None:
    first, fast = tried("model", 0.001, 1e-3 * ms, 1e-3 * ms), tried("single", 0.002, 0.009, 0.010, 0.011)
    failed = tried("sync_data", 0.005, failure="no answer")
    without = Setting("lenet, 1 Gbit/s", (), [failed])
    assert without.contenders() == []
    text = page([Setting("mlp, 1 Gbit/s", (), [fast, first, failed]), without], "a command")
    assert f"In {close} of 1 settings" in text
    assert f"| mlp, 1 Gbit/s | 3 | model | {ms} | single | 10 | {ms / 10:.2f} |" in text
    assert "- mlp, 1 Gbit/s, sync_data: no answer" in text
    assert "- lenet, 1 Gbit/s, sync_data: no answer" in text
