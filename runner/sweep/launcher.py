"""What runs the jobs of a sweep: one of Hydra's launchers, as plain data that can be stored and read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.errors import SecurityError

IN_PROCESS = "basic"
"""Hydra's launcher that runs one job after the other in the process of the sweep."""


@dataclass(frozen=True)
class Launcher:
    """A launcher that is installed, by name, and its settings; neither names code.

    settings: of the launcher, such as n_jobs, plain values. batch: most jobs handed to it at once, null for all.
    environment: variables a job has besides those of the sweep. in_job_directory: whether a job's working directory
    is its own.
    """

    name: str = IN_PROCESS
    settings: Mapping[str, Any] = field(default_factory=dict)
    batch: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    in_job_directory: bool = False

    def __post_init__(self) -> None:
        """Raise SecurityError for a setting that Hydra would take for something to execute."""
        _refuse_code(self.settings)

    @property
    def shares_process(self) -> bool:
        """Whether jobs run in the process of the sweep, so that what interrupts one interrupts the sweep."""
        return self.name == IN_PROCESS


def jobs_at_once(launcher: Launcher, jobs: int, cores: int) -> int:
    """How many of ``jobs`` this launcher has running at a time on a machine with ``cores`` cores.

    A launcher that asks a cluster for machines counts as one: each of its jobs sees the cores it was given.
    """
    batch = min(jobs, launcher.batch or jobs)
    if launcher.name == "submitit_local":
        return max(1, batch)
    if launcher.name != "joblib":
        return 1
    processes = int(launcher.settings.get("n_jobs") or 1)
    if processes < 0:  # as joblib counts: -1 is all cores, -2 all but one
        processes = cores + 1 + processes
    return max(1, min(processes, batch))


def _refuse_code(value: object) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if str(key).startswith("_"):
                raise SecurityError(f"setting {key} of a launcher: a stored sweep names no code; expected plain values")
            _refuse_code(inner)
    elif isinstance(value, list):
        for inner in value:
            _refuse_code(inner)
