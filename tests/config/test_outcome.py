"""Keys that decide the values of a run, and keys that do not."""

from dataclasses import replace
from typing import Any

import pytest

from runner.config.outcome import outcome_hash
from runner.data.arrays import Arrays
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
        "checkpoint.keep=5",
    ],
)
def test_how_a_run_is_ordered_and_watched_does_not_count(override: str) -> None:
    assert outcome_hash(small_config(*ASYNC, override)) == REFERENCE


def test_room_in_memory_decides_no_value() -> None:
    config = small_config(*ASYNC)

    def outcome(**settings: Any) -> str:
        return outcome_hash(replace(config, data=Arrays(**settings)))

    assert outcome(max_bytes=1000) == outcome()
    assert outcome(layout="nchw") != outcome()


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
        "checkpoint.every_steps=2",
        "checkpoint.keep_best=true",
        "cluster.compression=high16",
        "cluster.threads_per_worker=3",
    ],
)
def test_keys_that_change_values_count(override: str) -> None:
    assert outcome_hash(small_config(*ASYNC, override)) != REFERENCE
