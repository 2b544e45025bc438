"""The schema of the YAML files: plain dataclasses, one per section of a configuration.

A field of :class:`Config` that belongs to a group holds one of the dataclasses in the group's table
(:data:`runner.config.groups.GROUPS`). The classes are not frozen; OmegaConf can check their field types.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from omegaconf import MISSING

from runner.bounds import Bounds, Count, CountOrZero, NonNegative, Seed, SmallCount
from runner.engine.graph.device import COLLECTIVES, COMPRESSIONS, CPU, DEVICE_TYPES, DISTRIBUTIONS, LONGEST_DELAY_S
from runner.engine.simulate.hardware import Hardware
from runner.errors import ConfigError, require, require_one_of


def key(default: Any, text: str) -> Any:
    """Return a dataclass field with the line that ``runner --help`` prints for the field.

    default: the default value, or a function that returns it.
    """
    if callable(default):
        return field(default_factory=default, metadata={"help": text})
    return field(default=default, metadata={"help": text})


@dataclass
class TrainConfig:
    """Length of training, batch sizes and evaluations. Exactly one of ``epochs`` and ``steps`` is set."""

    batch_size: Count = key(32, "examples per update, over all workers")
    epochs: Annotated[float, Bounds(0, 1e9, above=True)] | None = key(
        None, "passes over the training split; setting this key makes train.steps null"
    )
    steps: Count | None = key(None, "updates; setting this key makes train.epochs null")
    microbatches: SmallCount = key(1, "parts of the batch computed one after the other (parallelism=single)")
    recompute: list[str] | None = key(
        None, "layers to recompute in the backward pass: kinds, or names with * and ?; null: none"
    )
    eval_every: Count | None = key(None, "steps between evaluations; null: once per epoch")
    eval_batch_size: Count = key(256, "examples per evaluation batch, over all workers")
    log_every: Count = key(10, "steps between logged training metrics")
    monitor: str | None = key(
        None, "metric that compares runs and checkpoints; null: the metric of the task, on val or test"
    )
    patience: Count | None = key(
        None, "evaluations without a better train.monitor after which the run ends; null: no limit"
    )
    min_delta: NonNegative = key(0.0, "for train.patience: only larger changes count as improvement")
    restarts: Annotated[int, Bounds(0, 1000)] = key(
        3, "allowed restarts of lost workers and servers; 20 steps or a new checkpoint reset the count"
    )
    fail_on_divergence: bool = key(False, "exit with code 5 if the training loss exploded (status diverged)")


@dataclass
class CheckpointConfig:
    """Frequency of checkpoints and the number of checkpoints kept. The last step of a run is always saved."""

    every_steps: Count | None = key(None, "steps between checkpoints; null: only by time and at the end")
    every_s: Annotated[float, Bounds(0, 10**9)] | None = key(
        60.0,
        "seconds between further checkpoints, more if saving takes over 2 % of the time; null, or asynchronous "
        "workers that do not race: none",
    )
    # With fewer checkpoints, a damaged new checkpoint could leave the run without an intact one.
    keep: Annotated[int, Bounds(3, 10**9)] = key(3, "newest checkpoints kept, 3 or more")
    keep_best: bool | None = key(
        None, "also keep the best checkpoint by train.monitor; null: if monitor, patience or data.val_fraction is set"
    )


@dataclass
class DebugConfig:
    """Checks for debugging, which make a run slower."""

    check_finite: bool = key(
        False, "check the outputs of every kernel; report the first node with a value that is not finite"
    )


@dataclass
class SimulateConfig:
    """The simulation of a run instead of its training."""

    updates: Count | None = key(None, "updates to simulate on cluster.hardware; null: train")


ADABN, CORAL, ADABN_CORAL = METHODS = ("adabn", "coral", "adabn_coral")
"""adabn: statistics of batch normalization from the target (Li et al. 2016). coral: a classifier of features that are
aligned with the target (Sun, Feng and Saenko 2016). adabn_coral: both, with the features of the adapted network."""


@dataclass
class Adaptation:
    """Adaptation to a target domain after the last update, without its labels; nothing is done without ``data``."""

    data: dict[str, Any] = key(dict, "target dataset: name=NAME and the keys of the dataset; {}: no adaptation")
    methods: list[str] = key(lambda: [ADABN], f"methods, each applied separately: {', '.join(METHODS)}")
    batch_size: Count = key(64, "examples per batch of the target")
    batches: Count | None = key(None, "batches of the target's train split for adabn; null: all full batches")
    curve: list[Count] = key(list, "numbers of batches after which adabn is also scored")

    def __post_init__(self) -> None:
        if not self.methods or len(set(self.methods)) < len(self.methods) or not set(self.methods) <= set(METHODS):
            raise ConfigError(f"adapt.methods={self.methods}: expected one or more of {', '.join(METHODS)}")
        if self.curve and set(self.methods) == {CORAL}:
            raise ConfigError(f"adapt.curve={self.curve} with adapt.methods=[{CORAL}]: expected [], or {ADABN}")


Index = Annotated[int, Bounds(0, 4095)]


@dataclass
class StragglersConfig:
    """Emulated slow workers, which wait before each training step if ``cluster.emulate`` is true."""

    distribution: str = key("none", "distribution of the delays: none, constant, or lognormal")
    workers: list[Index] | None = key(None, "numbers of the slow workers; null: all")
    median_ms: Annotated[float, Bounds(0, 1000 * LONGEST_DELAY_S)] = key(0.0, "median of the delays, milliseconds")
    sigma: Annotated[float, Bounds(0, 5)] = key(
        0.0, "lognormal: standard deviation of the natural logarithm of the delays"
    )

    def __post_init__(self) -> None:
        where, given = "cluster.stragglers", self.workers
        require_one_of(f"{where}.distribution", self.distribution, DISTRIBUTIONS)
        distinct = given is None or (given != [] and len(set(given)) == len(given))
        expected = "one or more distinct worker numbers, counted from 0, or null for all"
        require(distinct, f"{where}.workers", given, expected)
        waits, lognormal = self.distribution != "none", self.distribution == "lognormal"
        expected = "above 0" if waits else "0 with distribution=none"
        require((self.median_ms > 0) == waits, f"{where}.median_ms", self.median_ms, expected)
        expected = "above 0" if lognormal else "0 unless distribution=lognormal"
        require((self.sigma > 0) == lognormal, f"{where}.sigma", self.sigma, expected)


LOCAL, HOSTS, SLURM, RAY = LAUNCHERS = ("local", "hosts", "slurm", "ray")

_KINDS_OF = {
    "over_tcp": (LOCAL,),
    "address": (HOSTS, SLURM, RAY),
    "hosts": (HOSTS,),
    "sbatch": (SLURM,),
    "ray": (RAY,),
    "placement": (RAY,),
}
"""Key of a launcher -> the kinds of launchers that have the key."""

PLACEMENTS = ("pack", "spread", "strict_pack", "strict_spread")
"""Strategies of a placement group of Ray; with ``strict_spread``, each process is on a separate node."""

SBATCH_OPTIONS = (
    *("account", "constraint", "cpus-per-task", "exclude", "exclusive", "job-name", "mem", "mem-per-cpu", "nodelist"),
    *("nodes", "ntasks-per-node", "partition", "qos", "reservation", "time"),
)
"""Options of ``sbatch`` that a configuration may contain. Other options write files at any path or execute code."""


@dataclass
class LauncherConfig:
    """The program that starts the processes of a run, and their connections; see ``docs/many-machines.md``."""

    kind: str = key(LOCAL, "processes started by: the run (local), users (hosts), srun (slurm), or Ray (ray)")
    over_tcp: bool = key(False, "kind=local: connect over loopback TCP with CURVE, without shared memory")
    address: str | None = key(
        None,
        "address of this host that other hosts reach, HOST or HOST:PORT; null: found by the run (not with kind=hosts)",
    )
    hosts: Any = key(None, "kind=hosts: host -> number of its processes, such as {a: 2, b: 2}")
    connections: Annotated[int, Bounds(1, 15)] = key(1, "TCP connections for large tensors from one process to another")
    join_s: Annotated[float, Bounds(1, 86_400)] = key(
        300.0, "longest wait for the processes to join, seconds; unused by kind=local"
    )
    sbatch: Any = key(None, "kind=slurm: sbatch options, such as {nodes: 2, time: 60}, for a run outside an allocation")
    ray: str | None = key(None, "kind=ray: HOST:PORT of a running Ray cluster, or local to start one on this machine")
    placement: str = key("pack", f"kind=ray: placement of the processes: {', '.join(PLACEMENTS)}")

    def __post_init__(self) -> None:
        where = "cluster.launcher"
        require_one_of(f"{where}.kind", self.kind, LAUNCHERS)
        counts = self.hosts.values() if isinstance(self.hosts, Mapping) else () if self.hosts is None else (0,)
        counted = all(type(count) is int and 1 <= count <= 4096 for count in counts)
        expected = "a number of processes, 1 to 4096, for each host, such as {a: 2}"
        require(counted, f"{where}.hosts", self.hosts, expected)
        for name, kinds in _KINDS_OF.items():
            unset = getattr(self, name) in ("", {}, getattr(type(self), name))
            expected = f"{' or '.join(kinds)}, because launcher.{name} is set"
            require(unset or self.kind in kinds, f"{where}.kind", self.kind, expected)
        require_one_of(f"{where}.placement", self.placement, PLACEMENTS)
        given = self.sbatch if isinstance(self.sbatch, Mapping) else {} if self.sbatch is None else {"": self.sbatch}
        fits = (isinstance(value, str | int) and value is not False for value in given.values())
        allowed = given.keys() <= set(SBATCH_OPTIONS) and all(fits)
        expected = f"a text, a whole number or true for some of {', '.join(SBATCH_OPTIONS)}"
        require(allowed, f"{where}.sbatch", self.sbatch, expected)


AUTO = "auto"

FILLED_IN = ("workers", "threads_per_worker", "cores_per_worker", "gpus", "collectives")
"""Keys of the cluster that, if null, are filled in from the machine and the strategy when a run starts."""


@dataclass
class LocalCluster:
    """Workers as processes on this machine, or as parts of one process."""

    name: str = "local"
    device: str = key(AUTO, "device of a worker: cpu, gpu, or auto (a GPU if one can be used)")
    server_device: str = key(CPU, "device of a parameter server: cpu, or gpu if the workers have GPUs")
    gpus: list[Index] | None = key(
        None, "GPU of each worker, then of each server on a GPU: [0, 0, 1]; null: all GPUs in turn"
    )
    one_process: bool | None = key(
        None, "run all devices in this process; null: only on GPUs, and not if workers are asynchronous"
    )
    tf32: bool = key(False, "let GPUs round factors of float32 products and convolutions to TF32: 10 bits, faster")
    compare_plans: bool = key(
        False, "use the fastest cuDNN plan of each convolution, as measured; last bits can differ between runs"
    )
    collectives: str | None = key(
        None, "library for combine=all_reduce: nccl (sums between GPUs) or none; null: nccl if possible"
    )
    device_taken: str | None = key(None, "device that device=auto selected, filled in when a run starts; null: not yet")
    threads_per_worker: SmallCount | None = key(None, "kernel threads of a worker or server; null: cores // workers")
    cores_per_worker: Annotated[float, Bounds(0, 4096, above=True)] | None = key(
        None, "cores of a worker, for estimates; null: cores / workers"
    )
    workers: SmallCount | None = key(
        None, "worker processes, including backup workers; null: as many as parallelism needs"
    )
    filled_in: list[str] | None = key(
        None, "names of keys that were null and were filled in when the run started; null: not yet"
    )
    spares: Annotated[int, Bounds(0, 64)] = key(
        0, "processes started in advance, each of which can replace a lost process immediately"
    )
    min_workers: SmallCount | None = key(
        None, "fewest workers with which a run continues if lost workers cannot be restarted; null: all workers"
    )
    compression: str = key("none", "compression of sent tensors: none, or high16, the upper 16 bits of float32")
    bandwidth_mbit: Annotated[float, Bounds(1e-3, 1e9)] | None = key(
        None, "bandwidth of every link, megabit per second; null: unchanged"
    )
    latency_ms: Annotated[float, Bounds(0, 10_000)] | None = key(None, "latency of every link, ms; null: unchanged")
    stragglers: StragglersConfig = field(default_factory=StragglersConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    emulate: bool = key(False, "emulate bandwidth_mbit, latency_ms and stragglers by delays")
    hardware: Hardware | None = key(None, "kinds, places and links of devices, for `runner simulate`; null: none")

    def __post_init__(self) -> None:
        require_one_of("cluster.device", self.device, (AUTO, *DEVICE_TYPES))
        require_one_of("cluster.server_device", self.server_device, DEVICE_TYPES)
        types, taken = DEVICE_TYPES if self.device == AUTO else (self.device,), self.device_taken
        expected = f"{' or '.join(types)} with device={self.device}, or null"
        require(taken in (None, *types), "cluster.device_taken", repr(taken), expected)
        require_one_of("cluster.collectives", self.collectives, COLLECTIVES, optional=True)
        require(self.gpus != [], "cluster.gpus", self.gpus, "one or more GPU numbers from 0, or null for all in turn")
        require_one_of("cluster.compression", self.compression, COMPRESSIONS)
        known = set(self.filled_in or ()) <= set(FILLED_IN)
        require(known, "cluster.filled_in", self.filled_in, f"some of {', '.join(FILLED_IN)}, or null")


CLUSTERS: dict[str, type] = {"local": LocalCluster}  # option of the group ``cluster`` -> schema of the option


@dataclass
class Config:
    """A whole configuration. A field of type ``Any`` holds one of the dataclasses in the table of its group.

    callbacks: name -> dataclass of the callback, from :data:`runner.callback.CALLBACKS`.
    """

    seed: Seed = key(0, "fixes initial weights, data order, augmentation and dropout")
    precision: str = key("float32", "float32, float64, or bfloat16 (activations in bfloat16, parameters in float32)")
    task: Any = MISSING
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
    adapt: Adaptation = field(default_factory=Adaptation)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)
    callbacks: dict[str, Any] = key(dict, "callbacks of plugins, in the order of their calls: callbacks.NAME.KEY=VALUE")
    trace: bool = key(
        False,
        "record a timeline of some updates, trace.json for ui.perfetto.dev; lost if a worker fails in these updates",
    )
    trace_skip: CountOrZero = key(10, "updates of this process before the recording; fewer if the run is short")
    trace_steps: Annotated[int, Bounds(1, 100)] = key(5, "recorded updates, at most 100")
    init_from: str | None = key(None, "a checkpoint, or a run with one, for the initial weights")
    init_include: list[str] | None = key(None, "names of weights to load, with * and ?; null: all that fit")
    init_exclude: list[str] | None = key(None, "weights that keep their initial value, with * and ?; null: none")
    resume: str | None = key(None, "a run directory to continue: `runner resume=DIR`")


def for_one_process(cluster: LocalCluster) -> LocalCluster:
    """Return the cluster without the settings of worker processes and of emulated links, which one process refuses."""
    return dataclasses.replace(
        cluster, one_process=None, emulate=False, stragglers=StragglersConfig(), launcher=LauncherConfig()
    )


def server_processes(config: Config) -> int:
    return int(config.parallelism.processes.servers)


def worker_processes(config: Config) -> int:
    """Return the number of worker processes of a run, including backup workers."""
    return int(config.parallelism.processes.workers)


def spare_processes(config: Config) -> int:
    """Return the number of spare processes of a run; 0 if lost processes are not replaced."""
    return config.cluster.spares if config.train.restarts else 0


def key_help(schema: type) -> dict[str, str]:
    """Return key -> help line for the documented keys of a schema dataclass, in order of declaration."""
    return {f.name: f.metadata["help"] for f in dataclasses.fields(schema) if "help" in f.metadata}
