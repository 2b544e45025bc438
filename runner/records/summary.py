"""summary.json: what a run was and how it went, as one versioned document.

``Summary`` is the schema; its docstring documents every field. The file is strict JSON: an object with
exactly these fields, in which numbers that are not finite are the strings "nan", "inf" and "-inf". A file of an older
schema may lack fields, which then have their defaults.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from runner.errors import DataError
from runner.records.provenance import Provenance
from runner.system.json_file import parse_json
from runner.system.redaction import redact_overrides, redact_text
from runner.system.schema import LenientRecord, Record, Violation

SCHEMA_VERSION = 3
STATUSES = ("finished", "failed", "interrupted")
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
_GIT_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 26


@dataclass(frozen=True)
class Failure:
    """Why a run did not finish.

    class_name: the error's class, such as "NumericError". message: its text, without secrets. exit_code: of the
    process, null where the error has none of its own.
    """

    class_name: str
    message: str
    exit_code: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", redact_text(self.message))


@dataclass(frozen=True)
class Summary:
    """Schema 3 of summary.json; 2 had no ``devices`` and no ``device_reason``, 1 no ``provenance`` and no ``repeats``.

    Identity, always known:
      schema_version     3
      run_id             the run's identifier, the same after a resume
      status             "finished", "failed" or "interrupted"
      error              the ``Failure`` of a run that did not finish, else null
      config_hash        ``config_hash`` of the resolved configuration
      overrides          what was given on the command line, as "key=value", without secrets
      output_dir         the run's directory
      git_commit         commit of the code, "-dirty" behind it if files were changed, null without one
      versions           name -> version of Python, runner and the libraries that matter
      platform           operating system and its version
      cpu_model          model of the CPU
      strategy           name of the parallelism, such as "sync_data"
      workers            number of worker processes, backup workers too
      emulated           the slow network that was emulated, "" for a real one
      devices            logical device -> what it is: "CPU", or the GPU with its memory and driver
      device_reason      why these: as ``cluster.device`` asks, or what ``auto`` found
      plugins            file or module of each plugin -> SHA-256 of its source
      provenance         command line, machine and code (:class:`~runner.records.provenance.Provenance`), else null
      repeats            run_id of the run that this one repeats, "" for none

    Course of the run; empty, 0 or null for one that ended before it:
      kernels            device type -> libraries of the kernels in use
      kernels_missing    library of fast kernels that this machine lacks -> why
      steps              updates made since the run began, earlier processes of a resumed run included
      examples           training examples those updates used
      wall_seconds       time of this process from its start to the end of training
      compared_step_s    "model", "single", "sync_data" -> median seconds of a step, measured side by side before
                         training; empty unless parallelism.compare_steps asked for it
      step_time_s        "median", "p10" and "p90" of the seconds a step took in this process
      examples_per_s     training examples per second of step time in this process
      final              metric -> last value, such as "test/accuracy"
      best               metric -> best value (largest accuracy, smallest loss)
      bytes_sent_per_worker  bytes each worker sent, by worker number, then each parameter server by its own
      peak_memory_bytes  process ("master", "worker-0", "ps-0", ...) -> largest resident set
      dropped_shares     "worker-0", ... -> shares it began and that came too late, where there were backup workers
      dropped_examples   the same, counted in training examples
      init_from          the checkpoint whose weights this process began with, as init_from asked, "" without one
      init_taken         names of the weights that were taken of it
      init_left          name of each weight that kept its initial value -> why
      stopped            why the run ended before its last step, as train.patience asked; "" where it did not
      monitor            the metric by which evaluations were compared
      best_value         its best value at an evaluation, earlier processes included, null without one
      best_step          updates after which that was first, null without one
      best_checkpoint    the checkpoint of that step, below output_dir, null where none is kept as the best
      weights_sha256     SHA-256 over all variables sorted by unsharded name, in plain layout
    """

    run_id: str
    status: str
    config_hash: str
    output_dir: str
    strategy: str
    workers: int
    versions: dict[str, str]
    platform: str
    cpu_model: str
    schema_version: int = SCHEMA_VERSION
    error: Failure | None = None
    overrides: list[str] = field(default_factory=list)
    git_commit: str | None = None
    emulated: str = ""
    devices: dict[str, str] = field(default_factory=dict)
    device_reason: str = ""
    plugins: dict[str, str] = field(default_factory=dict)
    provenance: Provenance | None = None
    repeats: str = ""
    kernels: dict[str, str] = field(default_factory=dict)
    kernels_missing: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    examples: int = 0
    wall_seconds: float = 0.0
    compared_step_s: dict[str, float] = field(default_factory=dict)
    step_time_s: dict[str, float] = field(default_factory=dict)
    examples_per_s: float | None = None
    final: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    bytes_sent_per_worker: list[int] = field(default_factory=list)
    peak_memory_bytes: dict[str, int] = field(default_factory=dict)
    dropped_shares: dict[str, int] = field(default_factory=dict)
    dropped_examples: dict[str, int] = field(default_factory=dict)
    init_from: str = ""
    init_taken: list[str] = field(default_factory=list)
    init_left: dict[str, str] = field(default_factory=dict)
    stopped: str = ""
    monitor: str | None = None
    best_value: float | None = None
    best_step: int | None = None
    best_checkpoint: str | None = None
    weights_sha256: str | None = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r}: expected one of {', '.join(STATUSES)}")
        # Here and not where it is written: tables and pages are made from a summary in memory.
        object.__setattr__(self, "overrides", redact_overrides(self.overrides))

    def write(self, path: Path) -> None:
        """Replace ``path`` atomically and put it on the disk; raises OSError."""
        fresh = path.with_name(path.name + ".tmp")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(Record(Summary).write(self), file, indent=2, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a summary.json of this schema or an older one; raises DataError for anything else.

        What comes back is of this schema.
        """
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
    """SHA-256, in hex, of a plain configuration: the same whatever the order of its keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def git_commit(folder: Path) -> str | None:
    """Commit of the repository ``folder`` lies in, with "-dirty" behind it if tracked files are changed.

    None where there is no repository, no commit or no git.
    """
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def versions() -> dict[str, str]:
    """Versions of Python and of the installed distributions a result may depend on; imports none of them."""
    found = {"python": platform.python_version()}
    for name, distribution in _DISTRIBUTIONS.items():
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def cpu_model() -> str:
    """Model of the CPU, as the operating system names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def step_time(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 10th and 90th percentile of step times in seconds; empty without steps."""
    if not len(seconds):
        return {}
    p10, median, p90 = np.percentile(np.asarray(seconds, dtype=np.float64), (10, 50, 90))
    return {"median": float(median), "p10": float(p10), "p90": float(p90)}
