"""A record of contributions is replayed as a whole, by a run with the same configuration."""

import json
from pathlib import Path
from typing import Any

import pytest

from runner.config.configuration import dump
from runner.config.outcome import outcome_hash
from runner.config.schema import Config
from runner.errors import ConfigError
from runner.training.build import build
from runner.training.preconditions import require_record_of_one_configuration, require_whole_record
from runner.training.run import run
from tests.small_runs import small_config

BACKED = (
    *("parallelism=sync_data", "parallelism.workers=2", "parallelism.combine=parameter_server"),
    "parallelism.backup_workers=1",
)
SHARES = [{"step": step, "contributors": [0, 1], "dropped": []} for step in range(3)]


def record(folder: Path, outcome: str | None, lines: list[dict[str, Any]]) -> Path:
    path = folder / "contributors.jsonl"
    first = [] if outcome is None else [{"version": 1, "outcome": outcome}]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*first, *lines]))
    return path


def replaying(path: Path, *overrides: str) -> Config:
    return small_config(*BACKED, *overrides, f"parallelism.replay={path}")


def test_the_record_of_a_run_with_the_same_outcome_is_taken(tmp_path: Path) -> None:
    path = record(tmp_path, outcome_hash(small_config(*BACKED)), SHARES)
    require_whole_record(build(replaying(path, "train.log_every=1")))


@pytest.mark.parametrize("outcome", ["another", None])
def test_the_record_of_another_run_is_refused_before_anything_is_started(outcome: str | None, tmp_path: Path) -> None:
    path = record(tmp_path, outcome, SHARES)
    expected = r"contributors\.jsonl is not the record of a run with this configuration: replay it with the config"
    with pytest.raises(ConfigError, match=expected):
        build(replaying(path))


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    path = record(tmp_path, outcome_hash(small_config(*BACKED)), SHARES)
    with pytest.raises(ConfigError, match="is not the record of a run with this configuration"):
        build(replaying(path, "seed=3"))


def test_a_record_that_is_too_short_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    path = record(tmp_path, outcome_hash(small_config(*BACKED)), SHARES[:2])
    expected = r"contributors\.jsonl: it has 2 updates; expected 3\. The recorded run did not end"
    with pytest.raises(ConfigError, match=expected):
        run(replaying(path), tmp_path / "run", overrides=[])
    assert not (tmp_path / "run").exists()


def test_the_record_of_a_run_that_stopped_early_is_complete(tmp_path: Path) -> None:
    patient = ("train.patience=1", "train.eval_every=2")
    path = record(tmp_path, outcome_hash(small_config(*BACKED, *patient)), SHARES[:2])
    require_whole_record(build(replaying(path, *patient)))


def left_by(config: Config, folder: Path, *earlier: Config) -> Path:
    """The record of a run in ``folder`` whose last start went by a configuration, and earlier ones by others."""
    for start, each in enumerate(earlier, 1):
        (folder / f"config-{start}.yaml").write_text(dump(each))
    (folder / "config.yaml").write_text(dump(config))
    return record(folder, outcome_hash(config), SHARES)


def test_the_record_of_a_run_that_changed_on_the_way_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    path = left_by(small_config(*BACKED), tmp_path, small_config(*BACKED, "optimizer.lr=0.5"))
    expected = (
        r"contributors\.jsonl: the configuration of its run changed: config-1\.yaml has other optimizer\.lr\. No single"
    )
    with pytest.raises(ConfigError, match=expected):
        run(replaying(path), tmp_path / "run", overrides=[])
    assert not (tmp_path / "run").exists()


def test_more_steps_change_a_run_only_if_the_rate_depends_on_them(tmp_path: Path) -> None:
    shorter = "train.steps=2"
    constant = (*BACKED, "schedule=constant")
    path = left_by(small_config(*constant), tmp_path, small_config(*constant, shorter))
    require_record_of_one_configuration(replaying(path, "schedule=constant"))
    falling = (*BACKED, "schedule=cosine")
    path = left_by(small_config(*falling), tmp_path, small_config(*falling, shorter))
    with pytest.raises(ConfigError, match=r"config-1\.yaml has other train\.steps\. No single"):
        require_record_of_one_configuration(replaying(path, "schedule=cosine"))


def test_the_record_of_a_run_resumed_without_changes_is_accepted(tmp_path: Path) -> None:
    alike = small_config(*BACKED, "checkpoint.keep=9")
    require_record_of_one_configuration(replaying(left_by(small_config(*BACKED), tmp_path, alike)))


def test_a_record_without_its_run_is_accepted(tmp_path: Path) -> None:
    path = record(tmp_path, outcome_hash(small_config(*BACKED)), SHARES)
    (tmp_path / "config-1.yaml").write_text("of something else")
    require_record_of_one_configuration(replaying(path))
