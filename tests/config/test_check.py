"""Impossible values and combinations of keys are refused, and only certain keys change the outcome of a run."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from runner.commands.explain import explain
from runner.config.configuration import fix_machine_values
from runner.config.launcher import Launcher, jobs_at_once
from runner.config.monitor import keeps_best, monitor_of
from runner.config.outcome import outcome_hash
from runner.config.schema import worker_processes
from runner.data import Arrays
from runner.engine.cluster.emulation import EmulatedLink, Emulation, Stragglers
from runner.engine.graph import Cluster, Device
from runner.errors import ConfigError, SecurityError
from runner.training.build import build
from tests.small_runs import composed_config, small_config, typed

FAULTS = """
precision=float16
    precision='float16': expected one of float32, float64, bfloat16
resume=outputs/x
    resume='outputs/x': expected null; to continue a run, use `runner resume=DIR`
train.monitor=val/loss
    train.monitor=val/loss with data.val_fraction=0: there is no validation split; set data.val_fraction above 0
train.min_delta=0.1
    train.min_delta=0.1 with train.patience=null: min_delta has no effect
init_include=[a]
    init_include=['a'] with init_from=null: no weights are loaded; set init_from, or use init_inc
init_exclude=[]
    init_exclude=[] with init_from=null: no weights are loaded
train.steps=7 train.epochs=2
    train.epochs=2.0 and train.steps=7: expected exactly one; set the other
train.epochs=null
    train.epochs=null and train.steps=null: expected exactly one; set the other
train.batch_size=3 parallelism.workers=4
    train.batch_size=3 is smaller than parallelism.workers=4: every worker needs an example
train.eval_batch_size=3 parallelism.workers=4
    train.eval_batch_size=3 is smaller than parallelism.workers=4
parallelism=single train.batch_size=4 train.microbatches=5
    train.microbatches=5 is larger than train.batch_size=4
train.microbatches=2
    train.microbatches=2 with parallelism=sync_data: each worker's share
parallelism=model train.batch_size=3 parallelism.concurrent_steps=4
    parallelism.concurrent_steps=4 is larger than train.batch_size=3: every part needs an example; use fewer
parallelism=model train.microbatches=2
    train.microbatches=2 with parallelism=model: the number of parts is parallelism.concurrent_steps; set
parallelism=model parallelism.pipeline=stale
    parallelism.pipeline=stale with parallelism.concurrent_steps
parallelism=model parallelism.constraints=[1]
    parallelism.constraints=[1]: expected a map from patterns
parallelism=single parallelism.workers=2
    parallelism.workers=2 with parallelism=single
cluster.spares=1 cluster/launcher=hosts cluster.launcher.address=10.0.0.1 cluster.launcher.hosts={a:2}
    expected 3 processes in all, of workers, parameter servers and cluster.spares, such as
cluster.min_workers=3 parallelism.workers=2
    cluster.min_workers=3 with parallelism.workers=2: expected at most 2
cluster.min_workers=1 train.restarts=0
    cluster.min_workers=1 with train.restarts=0: no worker is started again; set train.restarts, or min_workers=null
cluster.min_workers=1 parallelism.backup_workers=1 parallelism.combine=parameter_server parallelism.replay=x
    cluster.min_workers=1 with parallelism.replay=x: the record needs all workers; use null
cluster.min_workers=1 cluster/launcher=hosts cluster.launcher.address=10.0.0.1 cluster.launcher.hosts={a:2}
    cluster.min_workers=1 with cluster/launcher=hosts: users start the processes; use slurm or ray, or min_workers=null
cluster.spares=2 cluster.one_process=true
    cluster.spares=2 with cluster.one_process=true: there is no worker process to replace; use 0
cluster.workers=3
    cluster.workers=3 and parallelism.workers=2 differ
parallelism.servers=2
    parallelism.servers=2 with parallelism.combine=sharded_reduce: only combine=
parallelism.combine=parameter_server parallelism.backup_workers=1 cluster.workers=2
    cluster.workers=2 and parallelism.workers=2 with parallelism.backup_workers=1 differ: set cluster.workers to 3
parallelism.combine=parameter_server parallelism.backup_workers=1 train.eval_batch_size=2
    train.eval_batch_size=2 is smaller than parallelism.workers=2 with parallelism.backup_workers=1: every worker
    needs an example of each batch; use a batch of 3 or more
parallelism.combine=parameter_server parallelism.backup_workers=1 cluster.stragglers.distribution=constant
cluster.stragglers.median_ms=1 cluster.stragglers.workers=[3]
    cluster.stragglers.workers=[3] with parallelism.workers=2 with parallelism.backup_workers=1: there is no worker
    3; expected numbers up to 2
parallelism.backup_workers=1
    parallelism.backup_workers=1 with parallelism.combine=sharded_reduce: a coll
cluster.compression=zip
    cluster.compression='zip': expected one of none, high16
cluster.compression=high16 precision=float64
    cluster.compression=high16 with precision=float64: only float32 tensors are compressed; use precision=float32 or
    bfloat16, or cluster.compression=none
cluster.stragglers.distribution=normal
    cluster.stragglers.distribution='normal': expected one of none, constant, log
cluster.stragglers.workers=[]
    cluster.stragglers.workers=[]: expected one or more distinct worker numbers, counted from 0
cluster.stragglers.workers=[1,1]
    cluster.stragglers.workers=[1, 1]: expected one or more distinct worker numbers, counted from 0
cluster.stragglers.workers=[0,2]
    cluster.stragglers.workers=[0, 2] with parallelism.workers=2: there is no worker 2; expected numbers up to 1
cluster.stragglers.median_ms=1
    cluster.stragglers.median_ms=1.0: expected 0 with distribution=none
cluster.stragglers.distribution=constant
    cluster.stragglers.median_ms=0.0: expected above 0
cluster.stragglers.distribution=lognormal cluster.stragglers.median_ms=1
    cluster.stragglers.sigma=0.0: expected above 0
cluster.stragglers.distribution=constant cluster.stragglers.median_ms=1 cluster.stragglers.sigma=1
    cluster.stragglers.sigma=1.0: expected 0 unless distribution=lognormal
parallelism=single cluster=slow_network
    cluster.emulate=true with parallelism=single: one process sends nothing over a network; use
    cluster.emulate=false, or parallelism=sync_data
cluster.emulate=true
    cluster.emulate=true with nothing to emulate: set cluster.bandwidth_mbit, cluster.latency_ms or
    cluster.stragglers, or use cluster=slow_network
optimizer=lbfgs schedule=constant
    optimizer=lbfgs with parallelism=sync_data: only single and sandblaster support a line search; use one
    of them, or another optimizer
optimizer=lbfgs parallelism=single
    schedule=cosine with schedule.warmup_steps=0 and optimizer=lbfgs: the line search determines the length of every
    step; use schedule=constant with schedule.warmup_steps=0
optimizer=lbfgs parallelism=single schedule=constant schedule.warmup_steps=3
    schedule=constant with schedule.warmup_steps=3 and optimizer=lbfgs: the line search
parallelism=sandblaster
    optimizer=momentum with parallelism=sandblaster: expected L-BFGS; use optimizer=lbfgs, or another strategy
tracking.uri=ftp://x
    tracking store 'ftp://x': expected an address that starts with one of sqlite
"""
"""Lines of overrides, each followed by indented lines with a part of the expected message."""
ROWS = re.findall(r"^((?:\S.*\n)+)((?: .*\n)+)", FAULTS, re.MULTILINE)


@pytest.mark.parametrize(("given", "message"), ROWS, ids=[given.strip() for given, _ in ROWS])
def test_impossible_configurations_are_refused(given: str, message: str):
    with pytest.raises(ConfigError) as caught:
        composed_config(*given.split())
    assert " ".join(message.split()) in str(caught.value)


def test_one_message_lists_every_fault():
    with pytest.raises(ConfigError) as caught:
        composed_config("train.min_delta=1", "precision=half", "init_include=[a]")
    keys = [line.split("=")[0] for line in str(caught.value).splitlines()]
    assert keys == ["precision", "train.min_delta", "init_include"]


def test_small_values_and_constraints_are_accepted():
    smallest = "parallelism=single train.batch_size=1 train.eval_batch_size=1 train.steps=1 seed=0"
    for given in (smallest, "parallelism=model parallelism.workers=4 train.batch_size=1"):
        assert composed_config(*given.split()).train.batch_size == 1
    config = composed_config("parallelism=model", "parallelism.constraints={conv*: 0, fc?: 1}")
    assert config.parallelism.constraints == {"conv*": 0, "fc?": 1}


TWO_WORKERS = ("parallelism=sync_data", "parallelism.workers=2")
TWO_BACKUPS = (*TWO_WORKERS, "parallelism.combine=parameter_server", "parallelism.backup_workers=2")


def test_cores_are_also_shared_with_backup_workers() -> None:
    config = small_config(*TWO_BACKUPS)
    config.cluster.threads_per_worker = None
    assert worker_processes(config) == 4
    fixed = fix_machine_values(config, cores=8)
    assert (fixed.cluster.threads_per_worker, fixed.cluster.workers) == (2, 4)
    assert worker_processes(small_config()) == 1


def test_a_pass_over_the_data_reads_every_example_once() -> None:
    experiment = build(small_config(*TWO_BACKUPS, "train.batch_size=50", "train.epochs=2", "train.steps=null"))
    assert experiment.config.parallelism.examples_per_update(50) == 100
    assert experiment.facts.train_examples == 1438
    assert experiment.total_steps == math.ceil(2 * 14.38)


def test_by_default_no_network_is_emulated_and_the_cost_model_has_its_defaults() -> None:
    experiment = build(small_config(*TWO_WORKERS))
    assert experiment.emulation is None
    assert (experiment.cluster.latency_s, experiment.cluster.bytes_per_s) == (Cluster.latency_s, Cluster.bytes_per_s)


@pytest.mark.parametrize("emulate", [True, False])
def test_the_cost_model_uses_the_described_links_whether_emulated_or_not(emulate: bool) -> None:
    experiment = build(small_config(*TWO_WORKERS, "cluster=slow_network", f"cluster.emulate={emulate}"))
    assert (experiment.cluster.latency_s, experiment.cluster.bytes_per_s) == (0.5e-3, 12.5e6)
    assert experiment.emulation == (Emulation(EmulatedLink(0.5e-3, 12.5e6), Stragglers()) if emulate else None)


def test_delays_of_stragglers_are_drawn_with_the_seed_of_the_run() -> None:
    lognormal = ("distribution=lognormal", "median_ms=20", "sigma=0.5", "workers=[1]")
    described = (f"cluster.stragglers.{each}" for each in lognormal)
    experiment = build(small_config(*TWO_WORKERS, *described, "cluster.emulate=true", "seed=5"))
    assert experiment.emulation == Emulation(EmulatedLink(), Stragglers("lognormal", 0.02, 0.5, (1,), seed=5))


def test_explain_reports_emulation_and_uses_its_times() -> None:
    slow = (*TWO_WORKERS, "cluster=slow_network", "cluster.latency_ms=1000")
    emulated, described = (explain(small_config(*slow, f"cluster.emulate={on}")) for on in ("true", "false"))
    assert "network                 emulated: 100 Mbit/s, 1000 ms, no stragglers" in emulated
    assert "emulated" not in described
    rows = [line.split() for line in described.splitlines() if line.startswith("/job:worker")]
    wires = [row for row in rows if len(row) == 6 and row[1].startswith("/job")]
    assert len(wires) == 2
    for *_, messages, _, transfer_ms, _ in wires:
        assert float(transfer_ms.replace(",", "")) >= 1000 * int(messages)


@pytest.mark.parametrize(("threads", "cores", "worth"), [(1, 0.5, 0.5), (1, 4.0, 1.0), (3, 2.0, 2.0)])
def test_estimates_depend_on_the_cores_of_a_worker(threads: int, cores: float, worth: float) -> None:
    described = (f"cluster.threads_per_worker={threads}", f"cluster.cores_per_worker={cores}")
    for device in build(small_config(*TWO_WORKERS, *described)).cluster.devices:
        assert (device.flops_per_s, device.bytes_per_s) == (worth * Device.flops_per_s, worth * Device.bytes_per_s)


TWO_REPLICAS = ("parallelism=async_data", "parallelism.workers=2")
REFERENCE = outcome_hash(small_config(*TWO_REPLICAS))


WITHOUT_EFFECT = """
parallelism.virtual_time=true parallelism.replay=x trace_skip=3 debug.check_finite=true cluster.latency_ms=1
checkpoint.keep=5
"""
WITH_EFFECT = """
seed=1 optimizer.lr=0.5 parallelism.n_push=2 train.eval_every=2 train.steps=4 train.patience=4 data.val_fraction=0.1
init_from=x checkpoint.every_steps=2 checkpoint.keep_best=true cluster.compression=high16 cluster.threads_per_worker=3
"""


@pytest.mark.parametrize("override", typed(WITHOUT_EFFECT))
def test_keys_of_ordering_tracing_and_checkpoints_do_not_change_the_outcome(override: str) -> None:
    assert outcome_hash(small_config(*TWO_REPLICAS, override)) == REFERENCE


def test_memory_limits_do_not_change_the_outcome() -> None:
    config = small_config(*TWO_REPLICAS)

    def outcome(**settings: Any) -> str:
        return outcome_hash(replace(config, data=Arrays(**settings)))

    assert outcome(max_bytes=1000) == outcome()
    assert outcome(layout="nchw") != outcome()


@pytest.mark.parametrize("override", typed(WITH_EFFECT))
def test_keys_that_change_values_change_the_outcome(override: str) -> None:
    assert outcome_hash(small_config(*TWO_REPLICAS, override)) != REFERENCE


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
        (Launcher("ray", {"ray": {"remote": {}}}), 4),
        (Launcher("ray", {"ray": {"remote": {"num_cpus": 1.5}}}), 2),
        (Launcher("ray", {"ray": {"remote": {"num_cpus": 8}}}), 1),
        (Launcher("ray", {"ray": {"remote": {"num_cpus": 0}}}), 4),
    ],
)
def test_how_many_of_six_jobs_run_at_a_time_on_four_cores(launcher: Launcher, expected: int) -> None:
    assert jobs_at_once(launcher, 6, cores=4) == expected


@pytest.mark.parametrize("settings", [{"_target_": "os.system"}, {"a": {"_target_": "x"}}, {"a": [{"_args_": []}]}])
def test_settings_that_name_code_are_refused(settings: dict[str, object]) -> None:
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
def test_the_monitored_metric_and_the_kept_best(overrides: list[str], metric: str, highest: bool, kept: bool) -> None:
    config = small_config(*overrides)
    monitor = monitor_of(config)
    assert (monitor.metric, monitor.highest, keeps_best(config)) == (metric, highest, kept)
