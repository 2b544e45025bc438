"""A record of contributions is replayed as a whole, by a run with the same configuration."""

import json
from pathlib import Path

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


def record(folder: Path, config: Config | str | None = None, lines: int = 3) -> Path:
    """The record of a run in a folder. config: of the run, or its outcome; None: no outcome is recorded."""
    path = folder / "contributors.jsonl"
    outcome = outcome_hash(config) if isinstance(config, Config) else config
    first = [] if outcome is None else [{"version": 1, "outcome": outcome}]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*first, *SHARES[:lines]]))
    return path


def replaying(path: Path, *overrides: str) -> Config:
    return small_config(*BACKED, *overrides, f"parallelism.replay={path}")


@pytest.mark.parametrize(
    ("settings", "lines"), [((), 3), (("train.patience=1", "train.eval_every=2"), 2)], ids=["whole", "stopped early"]
)
def test_the_record_of_a_run_with_the_same_outcome_is_accepted(
    tmp_path: Path, settings: tuple[str, ...], lines: int
) -> None:
    path = record(tmp_path, small_config(*BACKED, *settings), lines)
    require_whole_record(build(replaying(path, *settings, "train.log_every=1")))


@pytest.mark.parametrize("origin", ["another", None, small_config(*BACKED, "seed=3")], ids=["other", "none", "seed"])
def test_the_record_of_another_run_is_refused_before_anything_is_started(
    origin: Config | str | None, tmp_path: Path
) -> None:
    path = record(tmp_path, origin)
    expected = r"contributors\.jsonl is not the record of a run with this configuration: replay it with the config"
    with pytest.raises(ConfigError, match=expected):
        build(replaying(path))


def test_a_record_that_is_too_short_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    path = record(tmp_path, small_config(*BACKED), lines=2)
    expected = r"contributors\.jsonl: it has 2 updates; expected 3\. The recorded run did not end"
    with pytest.raises(ConfigError, match=expected):
        run(replaying(path), tmp_path / "run", overrides=[])
    assert not (tmp_path / "run").exists()


def left_by(config: Config, folder: Path, *earlier: Config) -> Path:
    """The record of a run in ``folder`` whose last start went by a configuration, and earlier ones by others."""
    for start, each in enumerate(earlier, 1):
        (folder / f"config-{start}.yaml").write_text(dump(each))
    (folder / "config.yaml").write_text(dump(config))
    return record(folder, config)


def test_the_record_of_a_run_that_changed_on_the_way_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    path = left_by(small_config(*BACKED), tmp_path, small_config(*BACKED, "optimizer.lr=0.5"))
    expected = r"contributors\.jsonl: the configuration of its run changed: config-1\.yaml has other optimizer\.lr\. No"
    with pytest.raises(ConfigError, match=expected):
        run(replaying(path), tmp_path / "run", overrides=[])
    assert not (tmp_path / "run").exists()


def test_more_steps_change_a_run_only_if_the_rate_depends_on_them(tmp_path: Path) -> None:
    for schedule in ("schedule=constant", "schedule=cosine"):
        settings = (*BACKED, schedule)
        path = left_by(small_config(*settings), tmp_path, small_config(*settings, "train.steps=2"))
        if schedule == "schedule=constant":
            require_record_of_one_configuration(replaying(path, schedule))
    with pytest.raises(ConfigError, match=r"config-1\.yaml has other train\.steps\. No single"):
        require_record_of_one_configuration(replaying(path, schedule))


def test_a_record_without_its_run_and_one_of_a_run_resumed_without_changes_are_accepted(tmp_path: Path) -> None:
    path = record(tmp_path, small_config(*BACKED))
    (tmp_path / "config-1.yaml").write_text("of something else")
    require_record_of_one_configuration(replaying(path))
    alike = small_config(*BACKED, "checkpoint.keep=9")
    require_record_of_one_configuration(replaying(left_by(small_config(*BACKED), tmp_path, alike)))
