"""Configurations trained as runner trains them, and the rates that are made of their steps."""

from pathlib import Path

import pytest

from benchmarks.cases import CASES
from benchmarks.process import SubjectError
from benchmarks.scaling import ScalingResult
from benchmarks.strategies import StrategyTable, configured
from tests.benchmarks.made import subject


def test_a_configuration_trains_on_its_data(tmp_path: Path) -> None:
    smoke = CASES["smoke"]
    with configured("single", smoke, ["parallelism=single"], tmp_path, threads=1, batch=smoke.batch) as process:
        process.ask("load")
        answer = process.ask("run", phase="step", times=2)
        assert len(answer["losses"]) == 2
        with pytest.raises(SubjectError, match="phase 'forward': a configuration has only 'step'"):
            process.ask("run", phase="forward", times=1)


def test_strategy_and_batch_are_those_asked_for(tmp_path: Path) -> None:
    parallelism = ("parallelism=sync_data", "parallelism.workers=2")
    with (
        configured("sync", CASES["smoke"], parallelism, tmp_path, threads=1, batch=1) as process,
        pytest.raises(SubjectError, match=r"train\.batch_size"),
    ):
        process.ask("load")


def test_scaling_sums_the_unconnected_runs_at_their_medians() -> None:
    result = ScalingResult("c", "t", 10, connected=(0.25,), unconnected=((0.1, 0.1, 9.0), (0.2,)), alone=(0.05,))
    assert (result.connected_rate, result.unconnected_rate, result.alone_rate) == (80.0, 150.0, 200.0)


def test_a_strategy_s_rate_is_of_the_whole_batch() -> None:
    table = StrategyTable("c", "t", 32, (subject("single", [8, 16, 400]),))
    assert table.rate(table.strategies[0]) == 2000.0
