"""Impossible values and combinations, each refused in words that say what to do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runner.config import hydra_app
from runner.errors import ConfigError

STRAGGLERS = "cluster.stragglers"
BACKED = ("parallelism.combine=parameter_server", "parallelism.backup_workers=1")

FAULTS: list[tuple[Sequence[str], str]] = [
    (["precision=float16"], "precision='float16': expected one of float32, float64, bfloat16"),
    (["resume=outputs/x"], "resume='outputs/x': expected null; to continue a run, use `runner resume=DIR`"),
    (
        ["train.monitor=val/loss"],
        "train.monitor=val/loss with data.val_fraction=0: there is no validation split; set data.val_fraction above 0",
    ),
    (["train.min_delta=0.1"], "train.min_delta=0.1 with train.patience=null: it has no effect"),
    (["init_include=[a]"], "init_include=['a'] with init_from=null: no weights are taken; set init_from, or init_inc"),
    (["init_exclude=[]"], "init_exclude=[] with init_from=null: no weights are taken"),
    (["train.epochs=null"], "train.epochs=null and train.steps=null: expected exactly one; set the other"),
    (
        ["train.batch_size=3", "parallelism.workers=4"],
        "train.batch_size=3 is smaller than parallelism.workers=4: every worker needs an example",
    ),
    (
        ["train.eval_batch_size=3", "parallelism.workers=4"],
        "train.eval_batch_size=3 is smaller than parallelism.workers=4",
    ),
    (
        ["parallelism=single", "train.batch_size=4", "train.microbatches=5"],
        "train.microbatches=5 is larger than train.batch_size=4",
    ),
    (["train.microbatches=2"], "train.microbatches=2 with parallelism=sync_data: the shares of its workers"),
    (
        ["parallelism=model", "train.batch_size=3", "parallelism.concurrent_steps=4"],
        "parallelism.concurrent_steps=4 is larger than train.batch_size=3: every part needs an example; use fewer",
    ),
    (
        ["parallelism=model", "train.microbatches=2"],
        "train.microbatches=2 with parallelism=model: the number of parts is parallelism.concurrent_steps; set",
    ),
    (
        ["parallelism=model", "parallelism.pipeline=stale"],
        "parallelism.pipeline=stale with parallelism.concurrent_steps",
    ),
    (["parallelism=model", "parallelism.constraints=[1]"], "parallelism.constraints=[1]: expected a map from patterns"),
    (["parallelism=single", "parallelism.workers=2"], "parallelism.workers=2 with parallelism=single"),
    (["cluster.workers=3"], "cluster.workers=3 and parallelism.workers=2 differ"),
    (["parallelism.servers=2"], "parallelism.servers=2 with parallelism.combine=sharded_reduce: only combine="),
    (
        [*BACKED, "cluster.workers=2"],
        "cluster.workers=2 and parallelism.workers=2 with parallelism.backup_workers=1 differ: set cluster."
        "workers to 3",
    ),
    (
        [*BACKED, "train.eval_batch_size=2"],
        "train.eval_batch_size=2 is smaller than parallelism.workers=2 with parallelism.backup_workers=1: every worker "
        "needs an example of each batch; use a batch of 3 or more",
    ),
    (
        [*BACKED, f"{STRAGGLERS}.distribution=constant", f"{STRAGGLERS}.median_ms=1", f"{STRAGGLERS}.workers=[3]"],
        "cluster.stragglers.workers=[3] with parallelism.workers=2 with parallelism.backup_workers=1: there is no "
        "worker 3; expected numbers up to 2",
    ),
    (["parallelism.backup_workers=1"], "parallelism.backup_workers=1 with parallelism.combine=sharded_reduce: a coll"),
    (["cluster.compression=zip"], "cluster.compression='zip': expected one of none, high16"),
    (
        ["cluster.compression=high16", "precision=float64"],
        "cluster.compression=high16 with precision=float64: only float32 tensors are compressed; "
        "use precision=float32 or bfloat16, or cluster.compression=none",
    ),
    ([f"{STRAGGLERS}.distribution=normal"], f"{STRAGGLERS}.distribution='normal': expected one of none, constant, log"),
    ([f"{STRAGGLERS}.workers=[]"], f"{STRAGGLERS}.workers=[]: expected different numbers of workers from 0"),
    ([f"{STRAGGLERS}.workers=[1,1]"], f"{STRAGGLERS}.workers=[1, 1]: expected different numbers of workers from 0"),
    (
        [f"{STRAGGLERS}.workers=[0,2]"],
        f"{STRAGGLERS}.workers=[0, 2] with parallelism.workers=2: there is no worker 2; expected numbers up to 1",
    ),
    ([f"{STRAGGLERS}.median_ms=1"], f"{STRAGGLERS}.median_ms=1.0: expected 0 where distribution=none"),
    (
        [f"{STRAGGLERS}.distribution=constant"],
        f"{STRAGGLERS}.median_ms=0.0: expected above 0",
    ),
    (
        [f"{STRAGGLERS}.distribution=lognormal", f"{STRAGGLERS}.median_ms=1"],
        f"{STRAGGLERS}.sigma=0.0: expected above 0",
    ),
    (
        [f"{STRAGGLERS}.distribution=constant", f"{STRAGGLERS}.median_ms=1", f"{STRAGGLERS}.sigma=1"],
        f"{STRAGGLERS}.sigma=1.0: expected 0 where distribution is not lognormal",
    ),
    (
        ["parallelism=single", "cluster=slow_network"],
        "cluster.emulate=true with parallelism=single: one process has no wire to wait for; "
        "use cluster.emulate=false, or parallelism=sync_data",
    ),
    (
        ["cluster.emulate=true"],
        "cluster.emulate=true with nothing to emulate: set cluster.bandwidth_mbit, cluster.latency_ms or "
        "cluster.stragglers, or use cluster=slow_network",
    ),
    (
        ["optimizer=lbfgs", "schedule=constant"],
        "optimizer=lbfgs with parallelism=sync_data: only single and sandblaster evaluate a batch along a line; use "
        "one of them, or another optimizer",
    ),
    (
        ["optimizer=lbfgs", "parallelism=single"],
        "schedule=cosine with schedule.warmup_steps=0 and optimizer=lbfgs: the line search determines the length of "
        "every step; use schedule=constant without a warm-up",
    ),
    (
        ["optimizer=lbfgs", "parallelism=single", "schedule=constant", "schedule.warmup_steps=3"],
        "schedule=constant with schedule.warmup_steps=3 and optimizer=lbfgs: the line search",
    ),
    (
        ["parallelism=sandblaster"],
        "optimizer=momentum with parallelism=sandblaster: expected L-BFGS; use optimizer=lbfgs, or another strategy",
    ),
    (
        ["tracking.uri=ftp://x"],
        "tracking store 'ftp://x': expected an address that starts with one of sqlite",
    ),
]


@pytest.mark.parametrize(("overrides", "complaint"), FAULTS, ids=[" ".join(fault[0]) for fault in FAULTS])
def test_what_cannot_work_is_refused(overrides: Sequence[str], complaint: str):
    job = hydra_app.compose(overrides)
    with pytest.raises(ConfigError) as caught:
        job.config()
    assert complaint in str(caught.value)


def test_one_message_tells_every_fault():
    with pytest.raises(ConfigError) as caught:
        hydra_app.compose(["train.min_delta=1", "precision=half", "init_include=[a]"]).config()
    assert [line.split("=")[0] for line in str(caught.value).splitlines()] == [
        "precision",
        "train.min_delta",
        "init_include",
    ]


def test_a_batch_may_be_smaller_than_the_workers_that_the_network_is_spread_over():
    job = hydra_app.compose(["parallelism=model", "parallelism.workers=4", "train.batch_size=1"])
    assert job.config().train.batch_size == 1


def test_constraints_may_come_from_the_command_line():
    config = hydra_app.compose(["parallelism=model", "parallelism.constraints={conv*: 0, fc?: 1}"]).config()
    assert config.parallelism.constraints == {"conv*": 0, "fc?": 1}


def test_the_smallest_possible_values_are_accepted():
    config = hydra_app.compose(
        ["parallelism=single", "train.batch_size=1", "train.eval_batch_size=1", "train.steps=1", "seed=0"]
    ).config()
    assert config.train.batch_size == 1
