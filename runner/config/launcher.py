"""A job's place in its sweep, and the Hydra launcher that runs the jobs, as plain data that can be stored."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import SecurityError

BASIC = "basic"  # Hydra's sweeper whose jobs do not depend on the results of other jobs
IN_PROCESS = "basic"  # Hydra's launcher that runs one job after the other in the process of the sweep
JOBLIB = "joblib"  # Hydra's launcher that runs several jobs at a time in processes of this machine
RAY = "ray"  # the launcher of hydra-ray-launcher, whose jobs are tasks of a Ray cluster
STORED_LAUNCHERS = (IN_PROCESS, JOBLIB)
"""Launchers that a stored sweep may name. Settings of other launchers, such as submitit's commands, can be code."""

_STORED_WORDS = {"prefer": "processes", "pre_dispatch": "2*n_jobs", "batch_size": "auto", "mmap_mode": "r"}
"""The text settings of joblib, each with the only value that a stored sweep may give it: the default."""


@dataclass(frozen=True)
class SweepPlace:
    """The place of a job in its sweep.

    directory: absolute directory of the sweep. number: the job's number, from 0. swept: key -> value, as text, of the
    overrides that the sweep varies. gpus: description of the GPUs that the sweep gave to the job; "" if it gave none.
    name: name of the sweep in the tracking store; "" for the default, which names the swept keys.
    """

    directory: Path
    number: int
    swept: Mapping[str, str] = field(default_factory=dict)
    gpus: str = ""
    name: str = ""


@dataclass(frozen=True)
class Launcher:
    """The name of an installed launcher, and its settings; neither refers to code.

    settings: plain values, such as n_jobs. batch: largest number of jobs in one call of the launcher, None
    for all. environment: environment variables that a job has in addition to those of the sweep. in_job_directory:
    whether the working directory of every job is the directory of the job.
    """

    name: str = IN_PROCESS
    settings: Mapping[str, Any] = field(default_factory=dict)
    batch: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    in_job_directory: bool = False

    def __post_init__(self) -> None:
        """Raise SecurityError for a setting such as ``_target_``, which makes Hydra execute code."""
        _refuse_code(self.settings)

    @property
    def is_local(self) -> bool:
        """Whether jobs run on the machine of the sweep. False for launchers that may use other machines."""
        return self.name in (IN_PROCESS, JOBLIB, "submitit_local")

    @property
    def shares_process(self) -> bool:
        """Whether jobs run in the process of the sweep, so that an interrupted job ends the sweep."""
        return self.name == IN_PROCESS

    def foreign_settings(self) -> list[str]:
        """Return the keys of the settings that must not be taken from a stored sweep, because they can be code."""
        if self.name not in STORED_LAUNCHERS:
            return [f"hydra/launcher={self.name}"]
        words = {key: value for key, value in self.settings.items() if not isinstance(value, int | float | None)}
        return [
            *(f"hydra.launcher.{key}" for key, value in words.items() if value != _STORED_WORDS.get(key)),
            *(f"hydra.job.env_set.{name}" for name in self.environment),
        ]


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore their previous values afterwards."""
    saved = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, before in saved.items():
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before


def jobs_at_once(launcher: Launcher, jobs: int, cores: int) -> int:
    """Return the number of jobs that run at the same time on ``cores`` cores. jobs: the number of all jobs.

    The result is 1 for a launcher that requests machines from a cluster, because no two jobs share a machine's cores.
    Ray starts as many jobs on a node as its CPUs allow; a job takes ``num_cpus`` CPUs, by default 1.
    """
    if launcher.name == RAY:
        return max(1, int(cores // (launcher.settings["ray"]["remote"].get("num_cpus") or 1)))
    batch = min(jobs, launcher.batch or jobs)
    if launcher.name == "submitit_local":
        return max(1, batch)
    if launcher.name != JOBLIB:
        return 1
    processes = int(launcher.settings.get("n_jobs") or 1)
    if processes < 0:  # in joblib, -1 means all cores, and -2 means all cores except one
        processes = cores + 1 + processes
    return max(1, min(processes, batch))


def _refuse_code(value: object) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if str(key).startswith("_"):
                raise SecurityError(f"launcher setting {key}: a stored sweep must not name code; expected plain values")
            _refuse_code(inner)
    elif isinstance(value, list):
        for inner in value:
            _refuse_code(inner)
