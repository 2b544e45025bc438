"""The metric that runs and checkpoints are compared by, and when the best checkpoint is kept."""

from __future__ import annotations

import pytest

from runner.config.monitor import keeps_best, monitor_of
from tests.small_runs import small_config


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
def test_what_is_monitored_and_whether_the_best_is_kept(
    overrides: list[str], metric: str, highest: bool, kept: bool
) -> None:
    config = small_config(*overrides)
    monitor = monitor_of(config)
    assert (monitor.metric, monitor.highest, keeps_best(config)) == (metric, highest, kept)
