"""What the training loop knows of experiment tracking: a protocol, and the tracker that records nothing.

A tracker never slows a step and never ends a run. Its methods return in microseconds; whatever a store
refuses or cannot take is spooled and said in the log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

STATUSES = ("finished", "failed", "interrupted")


@dataclass(frozen=True)
class RunInfo:
    """The run a tracker records.

    run_id: the run's own identifier, the same before and after a resume; the store's run is found by it.
    name: shown in the user interface; a job of a sweep is named by its swept values (``job_name``).
    run_dir: the run's directory; the spool lives there.
    tags: facts about the run that are not configuration, such as the git commit.
    first_step: lowest step this process will log, 0 for a fresh run. On a resume, points below it that the
        store lacks are restored from ``history``; points the store has already are not written again.
    history: the run's metrics.jsonl, or None to restore nothing.
    sweep_dir, sweep_name: directory and name of the sweep this run is a job of; None and "" for a single run.
    """

    run_id: str
    name: str
    run_dir: Path
    tags: Mapping[str, str] = field(default_factory=dict)
    first_step: int = 0
    history: Path | None = None
    sweep_dir: Path | None = None
    sweep_name: str = ""


class Tracker(Protocol):
    """Records one run: ``start``, any number of ``log_*`` and ``set_tags``, then ``finish``."""

    def start(self, run: RunInfo) -> None:
        """Begin, or continue, the record of ``run``; returns before the store has been reached."""
        ...

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record a configuration; nested mappings become dotted keys."""
        ...

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record values named ``section/name`` (sections: ``metrics_log.SECTIONS``) of a step."""
        ...

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Copy a file into the record, below ``folder``. It must stay as it is until ``finish`` returns."""
        ...

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set facts about the run; a later value replaces an earlier one."""
        ...

    def finish(self, status: str) -> None:
        """Write what is pending and end the record with one of ``STATUSES``; waits for a bounded time."""
        ...


class Tracking(Protocol):
    """The settings of a kind of tracking, as the configuration group ``tracking`` gives them."""

    name: str

    def check(self) -> None:
        """Raise ValueError if the settings cannot work."""
        ...

    def create(self, run_dir: Path) -> Tracker:
        """A tracker for the run in this directory."""
        ...

    def finish_sweep(self, sweep_dir: Path, status: str, artifacts: Sequence[Path] = ()) -> None:
        """End the record of the sweep in this directory and add files, such as its table of jobs, to it."""
        ...


class NullTracker:
    """Records nothing."""

    def start(self, run: RunInfo) -> None:
        """Do nothing."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Do nothing."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Do nothing."""

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Do nothing."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Do nothing."""

    def finish(self, status: str) -> None:
        """Do nothing."""


@dataclass
class NoTracking:
    """Schema of ``tracking: none``."""

    name: str = "none"

    def check(self) -> None:
        """Nothing can be wrong."""

    def create(self, run_dir: Path) -> Tracker:
        """A tracker that records nothing."""
        return NullTracker()

    def finish_sweep(self, sweep_dir: Path, status: str, artifacts: Sequence[Path] = ()) -> None:
        """Do nothing."""


def job_name(swept: Mapping[str, str]) -> str:
    """Name a job of a sweep by its swept values, each key cut to its last part where that stays unambiguous.

    ``{"optimizer.lr": "0.1", "parallelism": "single"}`` gives "lr=0.1 parallelism=single".
    """
    last_parts = [key.rsplit(".", 1)[-1] for key in swept]
    return " ".join(
        f"{part if last_parts.count(part) == 1 else key}={value}"
        for part, (key, value) in zip(last_parts, swept.items(), strict=True)
    )
