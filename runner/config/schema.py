"""What may stand in a configuration: plain dataclasses, one per section, the schema of the YAML files.

The fields of :class:`Config` that belong to a group hold a dataclass of that group's table
(:data:`runner.config.configuration.GROUPS`). The classes are not frozen and their types are those OmegaConf can check.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, NoReturn

from omegaconf import MISSING

from runner.engine.device import COLLECTIVES, COMPRESSIONS, CPU, DEVICE_TYPES, DISTRIBUTIONS, LONGEST_DELAY_S
from runner.errors import ConfigError


def key(default: Any, text: str) -> Any:
    """A field with a default and the line that ``runner --help`` prints for it."""
    return field(default=default, metadata={"help": text})


@dataclass
class TrainConfig:
    """How long and in which portions to train. Exactly one of ``epochs`` and ``steps`` is set."""

    batch_size: int = key(32, "examples per update, over all workers")
    epochs: float | None = key(None, "passes over the training split; naming it releases train.steps")
    steps: int | None = key(None, "updates; naming it releases train.epochs")
    microbatches: int = key(1, "parts of the batch computed one after the other (parallelism=single)")
    eval_every: int | None = key(None, "steps between evaluations; null: once per epoch")
    eval_batch_size: int = key(256, "examples per evaluation batch, over all workers")
    log_every: int = key(10, "steps between logged training metrics")
    monitor: str | None = key(None, "metric by which runs and checkpoints are compared; null: val/ or test/accuracy")
    patience: int | None = key(None, "evaluations without a better train.monitor before the run ends; null: any number")
    min_delta: float = key(0.0, "for train.patience: better is better by more than this")


@dataclass
class CheckpointConfig:
    """When to save, and how many checkpoints to keep. The last step of a run is always saved."""

    every_steps: int | None = key(None, "steps between checkpoints; null: only at the end")
    keep: int = key(3, "newest checkpoints kept, 3 or more")
    keep_best: bool | None = key(
        None, "keep the best by train.monitor too; null: if monitor, patience or data.val_fraction is set"
    )


@dataclass
class DebugConfig:
    """Slower modes for looking into a run."""

    check_finite: bool = key(False, "check every kernel's outputs and name the first non-finite one")


LONGEST_LATENCY_MS = 10_000.0
MAX_SIGMA = 5.0


@dataclass
class StragglersConfig:
    """Workers that wait before each training step where ``cluster.emulate`` is true."""

    distribution: str = key("none", "of the waits: none, constant, or lognormal")
    workers: list[int] | None = field(default=None, metadata={"help": "numbers of the slow workers; null: all"})
    median_ms: float = key(0.0, "median of the waits, milliseconds")
    sigma: float = key(0.0, "lognormal: standard deviation of the natural logarithm of the waits")

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            _refuse("stragglers.distribution", repr(self.distribution), f"one of {', '.join(DISTRIBUTIONS)}")
        numbers = self.workers
        if numbers is not None and (not numbers or min(numbers) < 0 or len(set(numbers)) != len(numbers)):
            _refuse("stragglers.workers", numbers, "different numbers of workers from 0, at least one, or null for all")
        waits = self.distribution != "none"
        if not 0 <= self.median_ms <= 1000 * LONGEST_DELAY_S or (self.median_ms > 0) != waits:
            limits = f"above 0 and at most {1000 * LONGEST_DELAY_S:g}" if waits else "0 where distribution=none"
            _refuse("stragglers.median_ms", self.median_ms, limits)
        lognormal = self.distribution == "lognormal"
        if not 0 <= self.sigma <= MAX_SIGMA or (self.sigma > 0) != lognormal:
            limits = f"above 0 and at most {MAX_SIGMA:g}" if lognormal else "0 where distribution is not lognormal"
            _refuse("stragglers.sigma", self.sigma, limits)


AUTO = "auto"


@dataclass
class LocalCluster:
    """Every worker is a process on this machine, or a part of one."""

    name: str = "local"
    device: str = key(AUTO, "of a worker: cpu, gpu, or auto, a card where there is one that can be used")
    server_device: str = key(CPU, "of a parameter server: cpu, or gpu, where the workers have cards")
    cards: list[int] | None = field(
        default=None,
        metadata={"help": "card of each worker, then of each server on one: [0, 0, 1]; null: all cards in turn"},
    )
    one_process: bool | None = key(
        None, "all devices in this process; null: where workers have cards and no two clients overlap"
    )
    tf32: bool = key(False, "let cards round factors of float32 products and convolutions to TF32: 10 bits, faster")
    compare_plans: bool = key(
        False, "time cuDNN's plans of each convolution, take the fastest; another run may take others, to other bits"
    )
    collectives: str | None = key(
        None, "what sums for combine=all_reduce: nccl, between cards, or none; null: nccl where it can"
    )
    device_taken: str | None = key(None, "what device=auto came to, filled in when a run starts; null: not known yet")
    threads_per_worker: int | None = key(None, "kernel threads of a worker or parameter server; null: cores // workers")
    cores_per_worker: float | None = key(None, "cores that a worker has, for estimates; null: cores / workers")
    workers: int | None = key(
        None, "worker processes it has, backup workers too; null: as many as parallelism asks for"
    )
    compression: str = key("none", "of tensors between devices: none, or high16, the upper 16 bits of float32")
    bandwidth_mbit: float | None = key(None, "of every link, megabit per second; null: as it is")
    latency_ms: float | None = key(None, "of every link, milliseconds; null: as it is")
    stragglers: StragglersConfig = field(default_factory=StragglersConfig)
    emulate: bool = key(False, "wait as long as these links and stragglers would take")

    def __post_init__(self) -> None:
        self._check_devices()
        if self.compression not in COMPRESSIONS:
            raise ConfigError(f"cluster.compression={self.compression!r}: expected one of {', '.join(COMPRESSIONS)}")
        for field_name in ("threads_per_worker", "workers"):
            value = getattr(self, field_name)
            if value is not None and value < 1:
                raise ConfigError(f"cluster.{field_name}={value}: expected 1 or more, or null")
        if self.cores_per_worker is not None and not 0 < self.cores_per_worker < math.inf:
            _refuse("cores_per_worker", self.cores_per_worker, "a finite number above 0, or null")
        if self.bandwidth_mbit is not None and not 0 < self.bandwidth_mbit < math.inf:
            _refuse("bandwidth_mbit", self.bandwidth_mbit, "a finite number above 0, or null")
        if self.latency_ms is not None and not 0 <= self.latency_ms <= LONGEST_LATENCY_MS:
            _refuse("latency_ms", self.latency_ms, f"0 to {LONGEST_LATENCY_MS:g}, or null")

    def _check_devices(self) -> None:
        if self.device not in (AUTO, *DEVICE_TYPES):
            _refuse("device", repr(self.device), f"one of {', '.join((AUTO, *DEVICE_TYPES))}")
        if self.server_device not in DEVICE_TYPES:
            _refuse("server_device", repr(self.server_device), f"one of {', '.join(DEVICE_TYPES)}")
        fitting = DEVICE_TYPES if self.device == AUTO else (self.device,)
        if self.device_taken not in (None, *fitting):
            _refuse(
                "device_taken", repr(self.device_taken), f"{' or '.join(fitting)} with device={self.device}, or null"
            )
        if self.collectives not in (None, *COLLECTIVES):
            _refuse("collectives", repr(self.collectives), f"one of {', '.join(COLLECTIVES)}, or null")
        if self.cards is not None and (not self.cards or min(self.cards) < 0):
            _refuse("cards", self.cards, "numbers of cards from 0, at least one, or null for all in turn")


def _refuse(name: str, came: object, expected: str) -> NoReturn:
    raise ConfigError(f"cluster.{name}={came}: expected {expected}")


CLUSTERS: dict[str, type] = {"local": LocalCluster}
"""Every value of the ``cluster`` axis."""


@dataclass
class Config:
    """A whole configuration. The fields typed ``Any`` hold a dataclass chosen by its group's table."""

    seed: int = key(0, "fixes initial weights, data order, augmentation and dropout")
    precision: str = key("float32", "float32, float64, or bfloat16: activations in it, parameters in float32")
    model: Any = MISSING
    data: Any = MISSING
    optimizer: Any = MISSING
    schedule: Any = MISSING
    parallelism: Any = MISSING
    cluster: Any = MISSING
    tracking: Any = MISSING
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)
    trace: bool = key(
        False, "record a timeline of some updates: trace.json for ui.perfetto.dev; lost where a worker fails meanwhile"
    )
    trace_skip: int = key(10, "updates of this process before the recorded ones; fewer if the run is short")
    trace_steps: int = key(5, "recorded updates, at most 100")
    init_from: str | None = key(None, "a checkpoint, or a run with one, whose weights training begins with")
    init_include: list[str] | None = field(
        default=None, metadata={"help": "names of weights to take, with * and ?; null: all that fit"}
    )
    init_exclude: list[str] | None = field(
        default=None, metadata={"help": "names of weights to leave at their initial value, with * and ?; null: none"}
    )
    resume: str | None = key(None, "a run directory to continue: `runner resume=DIR`")


def server_processes(config: Config) -> int:
    """Parameter servers of a run."""
    return int(getattr(config.parallelism, "servers", None) or 0)


def worker_processes(config: Config) -> int:
    """Worker processes of a run: those whose shares count, and as many backup workers as its strategy has."""
    return int(config.parallelism.workers) + getattr(config.parallelism, "backup_workers", 0)


def key_help(schema: type) -> dict[str, str]:
    """Map the documented keys of a schema dataclass to their help lines, in order of declaration."""
    return {f.name: f.metadata["help"] for f in dataclasses.fields(schema) if "help" in f.metadata}
