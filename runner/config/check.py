"""What no single key can tell: combinations and ranges, checked before anything starts.

Each check yields one line per fault, with the keys, what came, what was expected and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from runner.config.monitor import MONITORED, monitor_of
from runner.config.schema import Config, server_processes, worker_processes
from runner.engine.device import CPU, GPU, NCCL
from runner.errors import ConfigError

PRECISIONS = ("float32", "float64", "bfloat16")
MIN_CHECKPOINTS = 3
"""Fewer leave nothing to fall back to when the newest is damaged while it is written."""

MOST_TRACED_STEPS = 100


def check(config: Config) -> None:
    """Raise one ConfigError that lists every impossible value or combination of ``config``."""
    _require_none(fault for rule in _RULES for fault in rule(config))


def check_devices(config: Config) -> None:
    """The same for what is asked of the devices alone, however many of them there are to be."""
    _require_none(_devices(config))


def _require_none(faults: Iterable[str]) -> None:
    if found := list(faults):
        raise ConfigError("\n".join(found))


def _single_values(config: Config) -> Iterator[str]:
    if config.precision not in PRECISIONS:
        yield f"precision={config.precision!r}: expected one of {', '.join(PRECISIONS)}"
    if config.seed < 0:
        yield f"seed={config.seed}: expected 0 or more"
    if config.checkpoint.keep < MIN_CHECKPOINTS:
        yield f"checkpoint.keep={config.checkpoint.keep}: expected {MIN_CHECKPOINTS} or more"
    if config.trace_skip < 0:
        yield f"trace_skip={config.trace_skip}: expected 0 or more"
    if not 1 <= config.trace_steps <= MOST_TRACED_STEPS:
        yield f"trace_steps={config.trace_steps}: expected 1 to {MOST_TRACED_STEPS}; a trace is held in memory"
    if config.resume is not None:
        yield f"resume={config.resume!r}: a run is continued by `runner resume=DIR`, not by a configuration"


def _monitor(config: Config) -> Iterator[str]:
    if config.train.monitor not in (None, *MONITORED):
        yield f"train.monitor={config.train.monitor!r}: expected one of {', '.join(MONITORED)}, or null"
    elif monitor_of(config).metric.startswith("val/") and not config.data.val_fraction:
        yield (
            f"train.monitor={config.train.monitor} with data.val_fraction=0: there is no validation split; set "
            "data.val_fraction above 0, or monitor test/accuracy or test/loss"
        )
    min_delta = config.train.min_delta
    if not (math.isfinite(min_delta) and min_delta >= 0):
        yield f"train.min_delta={min_delta}: expected a finite number, 0 or more"
    if min_delta and config.train.patience is None:
        yield (
            f"train.min_delta={min_delta} with train.patience=null: nothing waits for better; set train.patience, or "
            "train.min_delta=0"
        )


def _initial_weights(config: Config) -> Iterator[str]:
    for name, patterns in (("init_include", config.init_include), ("init_exclude", config.init_exclude)):
        if patterns is not None and config.init_from is None:
            yield f"{name}={patterns} with init_from=null: no weights are taken; set init_from, or {name} to null"


def _counts(config: Config) -> Iterator[str]:
    counts = {
        "train.batch_size": config.train.batch_size,
        "train.microbatches": config.train.microbatches,
        "train.eval_batch_size": config.train.eval_batch_size,
        "train.log_every": config.train.log_every,
        "train.eval_every": config.train.eval_every,
        "train.steps": config.train.steps,
        "train.patience": config.train.patience,
        "checkpoint.every_steps": config.checkpoint.every_steps,
        "parallelism.workers": config.parallelism.workers,
    }
    for name, count in counts.items():
        if count is not None and count < 1:
            yield f"{name}={count}: expected 1 or more"


def _length(config: Config) -> Iterator[str]:
    epochs, steps = config.train.epochs, config.train.steps
    if (epochs is None) == (steps is None):
        yield (
            f"train.epochs={_yaml(epochs)} and train.steps={_yaml(steps)}: "
            "exactly one says how long to train; set the other to null"
        )
    if epochs is not None and not (math.isfinite(epochs) and epochs > 0):
        yield f"train.epochs={epochs}: expected a finite number above 0"


def _shares(config: Config) -> Iterator[str]:
    train = config.train
    counted, processes = config.parallelism.workers, worker_processes(config)
    if config.parallelism.name == "model":
        # The network is spread over the workers, and the examples are not.
        counted = processes = 1
    for name, size, workers, asked in (
        ("batch_size", train.batch_size, counted, f"parallelism.workers={counted}"),
        ("eval_batch_size", train.eval_batch_size, processes, _asked(config)),
    ):
        if 0 < size < workers:
            yield (
                f"train.{name}={size} is smaller than {asked}: every worker needs "
                f"an example of each batch; use a batch of {workers} or more, or fewer workers"
            )
    if train.microbatches > train.batch_size > 0:
        yield (
            f"train.microbatches={train.microbatches} is larger than train.batch_size={train.batch_size}: "
            "every part needs an example; use fewer parts or a larger batch"
        )


def _pipeline(config: Config) -> Iterator[str]:
    if config.parallelism.name != "model":
        return
    parts, size = config.parallelism.concurrent_steps, config.train.batch_size
    if parts > size > 0:
        yield (
            f"parallelism.concurrent_steps={parts} is larger than train.batch_size={size}: every part needs an "
            "example; use fewer parts or a larger batch"
        )
    if config.train.microbatches > 1:
        yield (
            f"train.microbatches={config.train.microbatches} with parallelism=model: its parts are "
            "parallelism.concurrent_steps; use that, and train.microbatches=1"
        )


def _workers(config: Config) -> Iterator[str]:
    strategy = config.parallelism.name
    asked, present = config.parallelism.workers, config.cluster.workers
    processes = worker_processes(config)
    if strategy == "single" and asked > 1:
        yield (
            f"parallelism.workers={asked} with parallelism=single: it has one worker; "
            "choose parallelism=sync_data for more"
        )
    if strategy not in ("single", "model") and config.train.microbatches > 1:
        yield (
            f"train.microbatches={config.train.microbatches} with parallelism={strategy}: the shares of its "
            "workers are its microbatches; use parallelism=single, or train.microbatches=1"
        )
    if present is not None and present != processes:
        yield (
            f"cluster.workers={present} and {_asked(config)} differ: set cluster.workers to "
            f"{processes}, or to null to follow the strategy"
        )


def _lbfgs(config: Config) -> Iterator[str]:
    optimizer, strategy, schedule = config.optimizer.name, config.parallelism.name, config.schedule
    if strategy == "sandblaster" and optimizer != "lbfgs":
        yield (
            f"optimizer={optimizer} with parallelism=sandblaster: its coordinator commands L-BFGS; "
            "use optimizer=lbfgs, or another strategy"
        )
    if optimizer != "lbfgs":
        return
    if strategy not in ("single", "sandblaster"):
        yield (
            f"optimizer=lbfgs with parallelism={strategy}: only single and sandblaster evaluate a batch along a line; "
            "use one of them, or another optimizer"
        )
    if schedule.name != "constant" or schedule.warmup_steps:
        yield (
            f"schedule={schedule.name} with schedule.warmup_steps={schedule.warmup_steps} and optimizer=lbfgs: the "
            "line search finds the length of every step; use schedule=constant without a warm-up"
        )


def _compression(config: Config) -> Iterator[str]:
    if config.cluster.compression != "none" and config.precision == "float64":
        yield (
            f"cluster.compression={config.cluster.compression} with precision=float64: only float32 tensors are "
            "compressed, so none would be; use precision=float32 or bfloat16, or cluster.compression=none"
        )
    for group, why in (
        ("parallelism=single", "nothing is sent"),
        ("optimizer=lbfgs", "its line search needs all bits"),
    ):
        key, option = group.split("=")
        if config.cluster.compression != "none" and getattr(config, key).name == option:
            yield f"cluster.compression={config.cluster.compression} with {group}: {why}; use cluster.compression=none"


def _emulation(config: Config) -> Iterator[str]:
    cluster, workers = config.cluster, worker_processes(config)
    stragglers = cluster.stragglers
    if cluster.emulate and config.parallelism.name == "single":
        yield (
            "cluster.emulate=true with parallelism=single: one process has no wire to wait for; "
            "use cluster.emulate=false, or parallelism=sync_data"
        )
    nothing = cluster.bandwidth_mbit is None and not cluster.latency_ms and stragglers.distribution == "none"
    if cluster.emulate and nothing:
        yield (
            "cluster.emulate=true with nothing to emulate: set cluster.bandwidth_mbit, cluster.latency_ms or "
            "cluster.stragglers, or use cluster=slow_network"
        )
    if stragglers.distribution != "none" and not cluster.emulate:
        yield (
            f"cluster.stragglers.distribution={stragglers.distribution} with cluster.emulate=false: nobody would wait; "
            "use cluster.emulate=true, or distribution=none with median_ms=0 and sigma=0"
        )
    absent = [worker for worker in stragglers.workers or () if worker >= workers]
    if absent:
        yield (
            f"cluster.stragglers.workers={stragglers.workers} with {_asked(config)}: there is no worker "
            f"{', '.join(map(str, absent))}; expected numbers up to {workers - 1}"
        )


def _devices(config: Config) -> Iterator[str]:
    cluster = config.cluster
    for key, value, nothing in (
        ("cards", cluster.cards, "null"),
        ("tf32", cluster.tf32, "false"),
        ("compare_plans", cluster.compare_plans, "false"),
        ("collectives", cluster.collectives == NCCL and NCCL, "null"),
        ("server_device", cluster.server_device == GPU and GPU, CPU),
    ):
        if value and cluster.device == CPU:
            yield f"cluster.{key}={_text(value)} with cluster.device=cpu: there is no card; use {key}={nothing}"
    if cluster.tf32 and config.precision == "float64":
        yield (
            "cluster.tf32=true with precision=float64: only float32 products are rounded, so none would be; "
            "use precision=float32, or cluster.tf32=false"
        )


def _cards(config: Config) -> Iterator[str]:
    cluster = config.cluster
    servers = server_processes(config) if cluster.server_device == GPU else 0
    expected = worker_processes(config) + servers
    if cluster.cards is not None and len(cluster.cards) != expected:
        served = f" and {servers} parameter server(s) on cards" if servers else ""
        yield (
            f"cluster.cards={cluster.cards} with {_asked(config)}{served}: expected one number of a card for each, "
            f"{expected} in all; several may be the same, or null takes all cards in turn"
        )


def _tracking(config: Config) -> Iterator[str]:
    try:
        config.tracking.check()
    except ValueError as error:
        yield str(error)


def _asked(config: Config) -> str:
    """What says how many worker processes there are."""
    asked = f"parallelism.workers={config.parallelism.workers}"
    backups = worker_processes(config) - config.parallelism.workers
    return f"{asked} with parallelism.backup_workers={backups}" if backups else asked


def _yaml(value: object) -> object:
    return "null" if value is None else value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_RULES = (
    _single_values,
    _monitor,
    _initial_weights,
    _counts,
    _length,
    _shares,
    _pipeline,
    _workers,
    _lbfgs,
    _compression,
    _emulation,
    _devices,
    _cards,
    _tracking,
)
