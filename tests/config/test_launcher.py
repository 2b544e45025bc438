"""Launchers of sweeps, and the metric that compares runs."""

import pytest

from runner.config.launcher import Launcher, jobs_at_once
from runner.config.monitor import keeps_best, monitor_of
from runner.errors import SecurityError
from tests.small_runs import small_config


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        (Launcher("basic"), 1),
        (Launcher("joblib", {"n_jobs": 2}), 2),
        (Launcher("joblib", {"n_jobs": -1}), 4),
        (Launcher("joblib", {"n_jobs": -2}), 3),
        (Launcher("joblib", {"n_jobs": 50}), 6),
        (Launcher("joblib", {"n_jobs": 50}, batch=5), 5),
        (Launcher("submitit_local"), 6),
        (Launcher("submitit_slurm"), 1),
    ],
)
def test_jobs_at_once_of_six_on_four_cores(launcher: Launcher, expected: int) -> None:
    assert jobs_at_once(launcher, 6, cores=4) == expected


@pytest.mark.parametrize("settings", [{"_target_": "os.system"}, {"a": {"_target_": "x"}}, {"a": [{"_args_": []}]}])
def test_settings_name_no_code(settings: dict[str, object]) -> None:
    with pytest.raises(SecurityError, match="a stored sweep must not name code"):
        Launcher("joblib", settings)


@pytest.mark.parametrize(
    ("overrides", "metric", "highest", "kept"),
    [
        ([], "test/accuracy", True, False),
        (["data.val_fraction=0.1"], "val/accuracy", True, True),
        (["data.val_fraction=0.1", "train.monitor=val/loss"], "val/loss", False, True),
        (["data.val_fraction=0.1", "checkpoint.keep_best=false"], "val/accuracy", True, False),
        (["train.monitor=train/loss"], "train/loss", False, True),
        (["train.patience=3"], "test/accuracy", True, True),
        (["checkpoint.keep_best=true"], "test/accuracy", True, True),
    ],
)
def test_the_monitored_metric_and_whether_the_best_is_kept(
    overrides: list[str], metric: str, highest: bool, kept: bool
) -> None:
    config = small_config(*overrides)
    monitor = monitor_of(config)
    assert (monitor.metric, monitor.highest, keeps_best(config)) == (metric, highest, kept)
