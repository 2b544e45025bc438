"""A run that goes on under another strategy: what it takes along, what it leaves, and what it keeps of before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.config.configuration import load_stored
from runner.records.summary import Summary
from runner.training.build import build
from runner.training.life import _Life, run
from tests.small_runs import small_config

STRATEGIES = (
    ("parallelism=sync_data",),
    ("parallelism=sync_data", "parallelism.combine=parameter_server", "parallelism.backup_workers=1"),
    ("parallelism=hybrid", "parallelism.scheme=c"),
    ("parallelism=model", "parallelism.concurrent_steps=2"),
    ("parallelism=async_data", "parallelism.n_push=2"),
)
IN_ONE_PROCESS = ("parallelism=async_data", "parallelism.virtual_time=true", "parallelism.workers=2")


def train(folder: Path, *overrides: str, resume: bool = False) -> Summary:
    return run(small_config(*overrides), folder, overrides=[], resume=resume)


def strategy_in(path: Path) -> tuple[str, int]:
    parallelism: Any = load_stored(path).parallelism
    return parallelism.name, parallelism.workers


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adagrad"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=" ".join)
def test_every_strategy_keeps_the_variables_of_single(strategy: Sequence[str], optimizer: str) -> None:
    """So every checkpoint starts under every strategy, with the slots of its optimizer."""
    alone = build(small_config(f"optimizer={optimizer}")).program.variables
    assert build(small_config(*strategy, f"optimizer={optimizer}")).program.variables == alone


def test_sandblaster_keeps_the_variables_of_single_with_the_same_optimizer() -> None:
    lbfgs = ("optimizer=lbfgs", "schedule=constant")
    alone = build(small_config(*lbfgs)).program.variables
    assert build(small_config(*lbfgs, "parallelism=sandblaster", "parallelism.workers=2")).program.variables == alone


def test_each_configuration_is_kept_under_the_last_start_that_went_by_it(tmp_path: Path) -> None:
    train(tmp_path, "train.steps=2")
    train(tmp_path, "train.steps=2", resume=True)
    train(tmp_path, *IN_ONE_PROCESS, "train.steps=4", resume=True)
    summary = train(tmp_path, "train.steps=6", resume=True)
    assert sorted(path.name for path in tmp_path.glob("config*.yaml")) == [
        "config-2.yaml",
        "config-3.yaml",
        "config.yaml",
    ]
    assert strategy_in(tmp_path / "config-2.yaml") == ("single", 1)
    assert strategy_in(tmp_path / "config-3.yaml") == ("async_data", 2)
    assert strategy_in(tmp_path / "config.yaml") == ("single", 1)
    assert (summary.steps, summary.strategy) == (6, "single")


def test_a_start_that_is_killed_leaves_no_summary_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(tmp_path, "train.steps=2").status == "finished"
    there = []
    execute = _Life.execute

    def look(life: _Life) -> Summary:
        there.append((tmp_path / "summary.json").exists())
        return execute(life)

    monkeypatch.setattr(_Life, "execute", look)
    train(tmp_path, "train.steps=4", resume=True)
    assert there == [False]
    assert Summary.read(tmp_path / "summary.json").steps == 4


def test_a_placement_is_that_of_the_strategy_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers stay where they are as long as the strategy stays; another one must not be held to devices of before."""
    train(tmp_path, "train.steps=1")
    placement = tmp_path / "placement.json"
    placement.write_text('{"version": 1, "layers": {"fc1": "/job:worker/task:5/device:cpu:0"}}')
    train(tmp_path, "train.steps=2", resume=True)
    assert placement.exists()
    train(tmp_path, *IN_ONE_PROCESS, "train.steps=3", resume=True)
    assert not placement.exists()
