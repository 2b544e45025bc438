"""Checks of combinations of keys, made before a run starts; :mod:`runner.bounds` checks single numbers.

Each check yields one line per fault, with the keys, their values, the expected values and the remedy.
"""

from collections.abc import Iterable, Iterator

from runner.config.monitor import keeps_best, monitor_of, monitored
from runner.config.schema import HOSTS, LOCAL, RAY, Config, server_processes, spare_processes, worker_processes
from runner.engine.graph.device import CPU, GPU, NCCL
from runner.errors import ConfigError
from runner.strategies.base import TrainingFacts
from runner.tracking.base import BEST_NETWORK

PRECISIONS = ("float32", "float64", "bfloat16")


def check(config: Config) -> None:
    """Raise one ConfigError that lists every invalid value and every invalid combination of values."""
    _require_none(fault for rule in _RULES for fault in rule(config))


def check_devices(config: Config) -> None:
    """Raise one ConfigError that lists every GPU key that conflicts with ``cluster.device`` or ``precision``."""
    _require_none(_devices(config))


def _require_none(faults: Iterable[str]) -> None:
    if found := list(faults):
        raise ConfigError("\n".join(found))


def _single_values(config: Config) -> Iterator[str]:
    if config.precision not in PRECISIONS:
        yield f"precision={config.precision!r}: expected one of {', '.join(PRECISIONS)}"
    if config.resume is not None:
        yield f"resume={config.resume!r}: expected null; to continue a run, use `runner resume=DIR`"


def _monitor(config: Config) -> Iterator[str]:
    known = monitored(config.task)
    if config.train.monitor not in (None, *known):
        yield f"train.monitor={config.train.monitor!r}: expected one of {', '.join(known)}, or null"
    elif monitor_of(config).metric.startswith("val/") and not config.data.val_fraction:
        yield (
            f"train.monitor={config.train.monitor} with data.val_fraction=0: there is no validation split; set "
            f"data.val_fraction above 0, or monitor {' or '.join(name for name in known if name.startswith('test/'))}"
        )
    min_delta = config.train.min_delta
    if min_delta and config.train.patience is None:
        yield (
            f"train.min_delta={min_delta} with train.patience=null: min_delta has no effect; set train.patience, or "
            "train.min_delta=0"
        )


def _initial_weights(config: Config) -> Iterator[str]:
    for name, patterns in (("init_include", config.init_include), ("init_exclude", config.init_exclude)):
        if patterns is not None and config.init_from is None:
            yield f"{name}={patterns} with init_from=null: no weights are loaded; set init_from, or use {name}=null"


def _length(config: Config) -> Iterator[str]:
    epochs, steps = config.train.epochs, config.train.steps
    if (epochs is None) == (steps is None):
        yield (
            f"train.epochs={_text(epochs)} and train.steps={_text(steps)}: expected exactly one; set the other to null"
        )


def _parallelism(config: Config) -> Iterator[str]:
    train, strategy, present = config.train, config.parallelism, config.cluster.workers
    if strategy.workers < 1:  # a plugin's field may have no declared bounds
        yield f"parallelism.workers={strategy.workers}: expected 1 or more"
    yield from strategy.faults(training_facts(config))
    if train.microbatches > train.batch_size:
        yield (
            f"train.microbatches={train.microbatches} is larger than train.batch_size={train.batch_size}: "
            "every part needs an example; use fewer parts or a larger batch"
        )
    processes = worker_processes(config)
    if present is not None and present != processes:
        yield (
            f"cluster.workers={present} and {strategy.worker_keys} differ: set cluster.workers to "
            f"{processes}, or to null to follow the strategy"
        )


def training_facts(config: Config) -> TrainingFacts:
    """Return the facts that the strategy's check needs, without the number of steps."""
    return TrainingFacts(
        optimizer=config.optimizer,
        batch_size=config.train.batch_size,
        eval_batch_size=config.train.eval_batch_size,
        microbatches=config.train.microbatches,
        emulated=config.cluster.emulate,
        compression=config.cluster.compression,
    )


def _line_search(config: Config) -> Iterator[str]:
    optimizer, schedule = config.optimizer, config.schedule
    if not optimizer.line_search:
        return
    if schedule.name != "constant" or schedule.warmup_steps:
        yield (
            f"schedule={schedule.name} with schedule.warmup_steps={schedule.warmup_steps} and "
            f"optimizer={optimizer.name}: the line search determines the length of every step; use "
            "schedule=constant with schedule.warmup_steps=0"
        )
    if config.cluster.compression != "none":
        yield (
            f"cluster.compression={config.cluster.compression} with optimizer={optimizer.name}: its line search needs "
            "exact values; use cluster.compression=none"
        )


def _compression(config: Config) -> Iterator[str]:
    if config.cluster.compression != "none" and config.precision == "float64":
        yield (
            f"cluster.compression={config.cluster.compression} with precision=float64: only float32 tensors are "
            "compressed; use precision=float32 or bfloat16, or cluster.compression=none"
        )


def _emulation(config: Config) -> Iterator[str]:
    cluster, workers = config.cluster, worker_processes(config)
    stragglers = cluster.stragglers
    nothing = cluster.bandwidth_mbit is None and not cluster.latency_ms and stragglers.distribution == "none"
    if cluster.emulate and nothing:
        yield (
            "cluster.emulate=true with nothing to emulate: set cluster.bandwidth_mbit, cluster.latency_ms or "
            "cluster.stragglers, or use cluster=slow_network"
        )
    if stragglers.distribution != "none" and not cluster.emulate:
        yield (
            f"cluster.stragglers.distribution={stragglers.distribution} with cluster.emulate=false: no worker would "
            "wait; use cluster.emulate=true, or distribution=none with median_ms=0 and sigma=0"
        )
    absent = [worker for worker in stragglers.workers or () if worker >= workers]
    if absent:
        yield (
            f"cluster.stragglers.workers={stragglers.workers} with {config.parallelism.worker_keys}: there is no "
            f"worker {', '.join(map(str, absent))}; expected numbers up to {workers - 1}"
        )


def _spares(config: Config) -> Iterator[str]:
    spares = config.cluster.spares
    if spares and config.cluster.one_process:
        yield f"cluster.spares={spares} with cluster.one_process=true: there is no worker process to replace; use 0"


def _min_workers(config: Config) -> Iterator[str]:
    cluster, fewest, restarts = config.cluster, config.cluster.min_workers, config.train.restarts
    if fewest is None:
        return
    chosen, most = f"cluster.min_workers={fewest}", worker_processes(config)
    if fewest > most:
        yield f"{chosen} with {config.parallelism.worker_keys}: expected at most {most}"
    if not restarts:
        yield f"{chosen} with train.restarts=0: no worker is started again; set train.restarts, or min_workers=null"
    if cluster.launcher.kind == HOSTS:
        yield f"{chosen} with cluster/launcher=hosts: users start the processes; use slurm or ray, or min_workers=null"
    if config.parallelism.replayed is not None:
        yield f"{chosen} with parallelism.replay={config.parallelism.replayed}: the record needs all workers; use null"


def _hardware(config: Config) -> Iterator[str]:
    if config.cluster.hardware is not None:
        yield from (f"cluster.hardware.{fault}" for fault in config.cluster.hardware.faults())


def _hosts(config: Config) -> Iterator[str]:
    launcher = config.cluster.launcher
    expected = worker_processes(config) + server_processes(config) + spare_processes(config)
    if launcher.kind == LOCAL:
        return
    chosen = f"cluster/launcher={launcher.kind}"
    if launcher.kind == HOSTS and not launcher.address:
        yield f"cluster.launcher.address=null with {chosen}: set an address of this host that the other hosts can reach"
    if launcher.kind == RAY and launcher.ray != "local" and not (launcher.ray or "").rpartition(":")[0]:
        yield (
            f"cluster.launcher.ray={_text(launcher.ray)} with {chosen}: expected HOST:PORT of a running cluster, such "
            "as 10.0.0.1:6379, or local to start one on this machine"
        )
    if launcher.kind == HOSTS and sum((launcher.hosts or {}).values()) != expected:
        yield (
            f"cluster.launcher.hosts={_text(launcher.hosts)}: expected {expected} processes in all, of workers, "
            "parameter servers and cluster.spares, such as "
            f"'cluster.launcher.hosts={{a: 1, b: {max(1, expected - 1)}}}'"
        )
    if config.cluster.emulate:
        yield f"cluster.emulate=true with {chosen}: links between hosts are not emulated; use emulate=false"
    if config.cluster.device == GPU or config.cluster.gpus is not None:
        yield f"cluster.device=gpu with {chosen}: GPUs of other hosts are not assigned yet; use device=cpu"
    if config.cluster.one_process:
        yield f"cluster.one_process=true with {chosen}: expected false or null"


def _devices(config: Config) -> Iterator[str]:
    cluster = config.cluster
    for key, value, off in (
        ("gpus", cluster.gpus, "null"),
        ("tf32", cluster.tf32, "false"),
        ("compare_plans", cluster.compare_plans, "false"),
        ("collectives", cluster.collectives == NCCL and NCCL, "null"),
        ("server_device", cluster.server_device == GPU and GPU, CPU),
    ):
        if value and cluster.device == CPU:
            yield f"cluster.{key}={_text(value)} with cluster.device=cpu: the run uses no GPU; use {key}={off}"
    if cluster.tf32 and config.precision == "float64":
        yield (
            "cluster.tf32=true with precision=float64: only float32 products are rounded; "
            "use precision=float32, or cluster.tf32=false"
        )


def _gpus(config: Config) -> Iterator[str]:
    cluster = config.cluster
    servers = server_processes(config) if cluster.server_device == GPU else 0
    expected = worker_processes(config) + servers
    if cluster.gpus is not None and len(cluster.gpus) != expected:
        served = f" and {servers} parameter server(s) on GPUs" if servers else ""
        yield (
            f"cluster.gpus={cluster.gpus} with {config.parallelism.worker_keys}{served}: expected one GPU number "
            f"for each, {expected} in all; numbers may repeat, and null uses all GPUs in turn"
        )


def _tracking(config: Config) -> Iterator[str]:
    try:
        config.tracking.check()
    except ValueError as error:
        yield str(error)
    if config.tracking.exports == BEST_NETWORK and not keeps_best(config):
        yield (
            "tracking.log_model=best: no best checkpoint is kept; set checkpoint.keep_best=true, or use "
            "tracking.log_model=last"
        )


def _text(value: object) -> str:
    """Return a value as YAML writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


_RULES = (
    _single_values,
    _monitor,
    _initial_weights,
    _length,
    _parallelism,
    _line_search,
    _compression,
    _emulation,
    _spares,
    _min_workers,
    _hardware,
    _hosts,
    _devices,
    _gpus,
    _tracking,
)
