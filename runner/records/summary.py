"""summary.json: one versioned document about a run and its result.

:class:`Summary` is the schema and documents every field. The file is strict JSON: an object with exactly these fields,
in which numbers that are not finite are the strings "nan", "inf" and "-inf". A file of an older schema may lack fields,
which then have their defaults.
"""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from runner.errors import DataError
from runner.records.provenance import Provenance, git
from runner.system.files import replace_durably
from runner.system.json_file import parse_json
from runner.system.machine import cpu_facts
from runner.system.redaction import redact_overrides, redact_text
from runner.system.schema import LenientRecord, Record, Violation

SCHEMA_VERSION = 6
SIMULATED = "simulated"
STATUSES = ("finished", "diverged", SIMULATED, "failed", "interrupted")
_DISTRIBUTIONS = {
    "runner": "runner-dataflow",
    "numpy": "numpy",
    "onednn": "onednn-cpu-gomp",
    "llvmlite": "llvmlite",
    "hydra-core": "hydra-core",
    "mlflow": "mlflow",
    "pyzmq": "pyzmq",
    "safetensors": "safetensors",
}
_MAX_BYTES = 1 << 26


@dataclass(frozen=True)
class Failure:
    """The error that ended a run.

    class_name: the error's class, such as "NumericError". message: its text, without secrets. exit_code: the
    exit code of the process, null if the error has none.
    """

    class_name: str
    message: str
    exit_code: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", redact_text(self.message))


@dataclass(frozen=True)
class LinkUse:
    """The use of a link. bytes: bytes carried per update. utilization: fraction of the link's capacity that is used."""

    bytes: float
    utilization: float


@dataclass(frozen=True)
class Simulation:
    """The result of a simulated run.

    hours: predicted time of the whole training, without evaluations. speedup: examples per second, relative to one
    worker with parallelism=single and the same batch; null if parallelism=single cannot train the network. parts_s:
    "compute", "communication", "waiting" or "input" -> seconds of an update, as the mean over the workers; see
    :mod:`runner.tracing.parts`. devices: device -> part -> fraction of its time. tensors: name -> bytes of the largest
    variables of the device with the most memory, and of its largest tensors at the peak of an update. links: link ->
    its use; links that carry nothing are left out. costs: kind of device or link -> origin of its numbers.
    """

    hours: float
    speedup: float | None
    parts_s: dict[str, float]
    devices: dict[str, dict[str, float]]
    tensors: dict[str, int]
    links: dict[str, LinkUse]
    costs: dict[str, str]


@dataclass(frozen=True)
class Summary:
    """Schema 6 of summary.json. New in 6: ``recoveries``. New in 5: ``simulation``, and the status "simulated".

    New in 4: ``headline``, ``evaluations``, ``changed``, and the status "diverged". New in 3: ``devices`` and
    ``device_reason``. New in 2: ``provenance`` and ``repeats``.

    The fields up to ``repeats`` are always known. Each further field is empty, 0 or null until it is known.
    """

    run_id: str  # the run's identifier, the same after a resume
    # "finished", "diverged" (finished, but the training loss exploded), "simulated" (nothing was trained: all
    # times are predicted), "failed" or "interrupted"
    status: str
    config_hash: str  # SHA-256 of the resolved configuration, as returned by ``config_hash``
    output_dir: str  # the run's directory
    strategy: str  # name of the parallelism, such as "sync_data"
    workers: int  # number of worker processes, including backup workers
    versions: dict[str, str]  # name -> version of Python, runner and the libraries that can change a result
    platform: str  # operating system and its version
    cpu_model: str  # model of the CPU
    schema_version: int = SCHEMA_VERSION
    # the error of a run that failed, was interrupted, or diverged with train.fail_on_divergence=true, else null
    error: Failure | None = None
    overrides: list[str] = field(default_factory=list)  # overrides of the command line, as "key=value", without secrets
    changed: list[str] = field(default_factory=list)  # all "key=value" that differ from the defaults, without secrets
    git_commit: str | None = None  # commit of the code, ending in "-dirty" if files were changed; null if there is none
    emulated: str = ""  # the slow network that was emulated, "" if none was
    devices: dict[str, str] = field(default_factory=dict)  # logical device -> "CPU", or GPU with its memory and driver
    device_reason: str = ""  # why the run uses these devices
    plugins: dict[str, str] = field(default_factory=dict)  # file or module of each plugin -> SHA-256 of its source
    provenance: Provenance | None = None  # command line, machine and code; null if not known
    repeats: str = ""  # run_id of the run that this run repeats; "" if it repeats none
    kernels: dict[str, str] = field(default_factory=dict)  # device type -> used libraries of kernels, joined by "+"
    kernels_missing: dict[str, str] = field(default_factory=dict)  # unavailable library of fast kernels -> reason
    steps: int = 0  # updates since the run began, including those of earlier processes of a resumed run
    examples: int = 0  # number of training examples that these updates used
    wall_seconds: float = 0.0  # time of this process from its start to the end of training
    # "model", "single", "sync_data" -> median seconds of a step, measured before training if
    # parallelism.compare_steps is set
    compared_step_s: dict[str, float] = field(default_factory=dict)
    step_time_s: dict[str, float] = field(default_factory=dict)  # "median", "p10" and "p90" of steps in this process
    examples_per_s: float | None = None  # training examples per second of step time in this process
    final: dict[str, float] = field(default_factory=dict)  # metric -> last value, such as "test/accuracy"
    best: dict[str, float] = field(default_factory=dict)  # metric -> best value (lowest or highest) of all evaluations
    evaluations: int = 0  # number of evaluations from which the values in ``best`` were chosen
    headline: dict[str, float] = field(default_factory=dict)  # metric -> value at the best checkpoint, else the last
    bytes_sent_per_worker: list[int] = field(default_factory=list)  # of each worker, then of each parameter server
    # process ("master", "worker-0", "ps-0", ...) -> largest resident set size
    peak_memory_bytes: dict[str, int] = field(default_factory=dict)
    # with backup workers, worker -> number of late shares (gradients for part of a batch)
    dropped_shares: dict[str, int] = field(default_factory=dict)
    dropped_examples: dict[str, int] = field(default_factory=dict)  # worker -> training examples in its dropped shares
    init_from: str = ""  # the value of the key init_from: the checkpoint of the initial weights; "" if there is none
    init_taken: list[str] = field(default_factory=list)  # names of the weights that were taken from this checkpoint
    init_left: dict[str, str] = field(default_factory=dict)  # weight that kept its initial value -> reason
    stopped: str = ""  # the reason why train.patience or a callback ended the run early; "" if none did
    recoveries: int = 0  # number of restarts of processes after one was lost, in all starts; see recoveries.jsonl
    monitor: str | None = None  # the metric by which evaluations were compared
    direction: str = ""  # "max" or "min", whether high or low values of this metric are better; "" in older files
    best_value: float | None = None  # best value of the monitored metric since the run began; null if there is none
    best_step: int | None = None  # number of updates at the first evaluation with the best value; null if there is none
    best_checkpoint: str | None = None  # the checkpoint of the best step, relative to output_dir; null if not kept
    weights_sha256: str | None = None  # SHA-256 over all variables, sorted by unsharded name, as row-major arrays
    simulation: Simulation | None = None  # the ``Simulation`` of a simulated run, else null

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r}: expected one of {', '.join(STATUSES)}")
        # Secrets are redacted here and not in ``write``, because tables and pages are made from summaries in memory.
        object.__setattr__(self, "overrides", redact_overrides(self.overrides))

    def write(self, path: Path) -> None:
        """Write the summary to ``path``, replaced atomically and flushed to the disk. Raises OSError."""
        text = json.dumps(Record(Summary).write(self), indent=2, allow_nan=False)
        replace_durably(path, f"{text}\n".encode())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a summary.json of this schema or an older one and return it in this schema. Raises DataError."""
        try:
            document = parse_json(path.read_bytes(), _MAX_BYTES)
        except (OSError, Violation) as error:
            raise DataError(f"{path}: cannot be read as JSON: {error}") from error
        version = document.get("schema_version") if isinstance(document, dict) else None
        if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
            newer = type(version) is int and version > SCHEMA_VERSION
            advice = "read it with a newer runner" if newer else "it is not a summary.json of runner"
            raise DataError(f"{path}: schema_version {version!r}, expected 1 to {SCHEMA_VERSION}; {advice}")
        schema = LenientRecord(cls, complete=version == SCHEMA_VERSION)
        try:
            return schema.read(document | {"schema_version": SCHEMA_VERSION})
        except ValueError as error:
            raise DataError(f"{path}: {error}") from error


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hex, of a plain configuration. The order of the keys has no effect."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def git_commit(folder: Path) -> str | None:
    """Return the commit of the repository of ``folder``, ending in "-dirty" if tracked files are changed.

    Returns None if there is no repository or no commit, or if git is not installed.
    """
    return git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the distributions that can change a result, without importing them."""
    return {"python": platform.python_version(), **_distributions()}


@cache
def _distributions() -> dict[str, str]:
    found = {}
    for name, distribution in _DISTRIBUTIONS.items():
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def joining_facts(plugins: Mapping[str, str], *, remote: bool = False) -> dict[str, str]:
    """Return the facts that must be equal in all processes of a run, because results depend on them.

    These are the versions of the libraries, the instruction sets of the CPU for which kernels differ, and the plugins.
    plugins: reference -> SHA-256 of the source. remote: whether processes of other hosts may join; their code can be
    another commit of the same version, so a digest of the source files of runner is added.
    """
    facts = cpu_facts()
    flags = set(facts.get("flags", "").split())
    sets = [name for name in ("fma", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if name in flags]
    found = {name: version for name, version in versions().items() if name != "mlflow"}
    found["cpu"] = " ".join([platform.machine(), facts.get("vendor_id", ""), *sets])
    if remote:
        found["source files of runner"] = f"SHA-256 {source_sha256(Path(__file__).parents[1])[:16]}"
    return found | {f"plugin {Path(reference).name}": sha256 for reference, sha256 in plugins.items()}


def source_sha256(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of the Python and CUDA files in a folder."""
    found = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*.*") if each.suffix in (".py", ".cu")):
        content = path.read_bytes()
        found.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


def cpu_model() -> str:
    return cpu_facts().get("model name") or platform.processor() or platform.machine()


def in_order(metrics: Iterable[str]) -> list[str]:
    """Return the metrics that a table shows: test, validation and simulated metrics, then the training loss.

    The metrics of each kind keep their order, but a loss is last.
    """
    found = list(metrics)
    of_splits = [[name for name in found if name.startswith(f"{split}/")] for split in ("test", "val", SIMULATED)]
    names = [name for split in of_splits for name in sorted(split, key=lambda name: name.endswith("/loss"))]
    return [*names, *(name for name in found if name == "train/loss")]


def step_time(seconds: Sequence[float]) -> dict[str, float]:
    """Return median, 10th and 90th percentile of step times in seconds; empty if there are no steps."""
    if not len(seconds):
        return {}
    p10, median, p90 = np.percentile(np.asarray(seconds, dtype=np.float64), (10, 50, 90))
    return {"median": float(median), "p10": float(p10), "p90": float(p90)}
