"""What decides the values of a run, and what does not."""

from __future__ import annotations

import pytest

from runner.config.outcome import outcome_hash
from tests.small_runs import small_config

ASYNC = ("parallelism=async_data", "parallelism.workers=2")
REFERENCE = outcome_hash(small_config(*ASYNC))


@pytest.mark.parametrize(
    "override",
    [
        "parallelism.virtual_time=true",
        "parallelism.replay=x",
        "trace_skip=3",
        "debug.check_finite=true",
        "cluster.latency_ms=1",
        "checkpoint.keep_best=true",
    ],
)
def test_how_a_run_is_ordered_and_watched_does_not_count(override: str) -> None:
    assert outcome_hash(small_config(*ASYNC, override)) == REFERENCE


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "optimizer.lr=0.5",
        "parallelism.n_push=2",
        "train.eval_every=2",
        "train.steps=4",
        "train.patience=4",
        "data.val_fraction=0.1",
        "init_from=x",
        "cluster.compression=high16",
        "cluster.threads_per_worker=3",
    ],
)
def test_what_changes_the_values_counts(override: str) -> None:
    assert outcome_hash(small_config(*ASYNC, override)) != REFERENCE
