"""What the training loop knows of experiment tracking: a protocol, and the tracker that records nothing.

A tracker never slows a step and never ends a run. Its methods return in microseconds; whatever a store
refuses or cannot take is spooled and said in the log.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from runner.system.redaction import redact

STATUSES = ("finished", "failed", "interrupted")
_NAMELESS = ("none", "null", "true", "false")


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
    pictures: bool

    def check(self) -> None:
        """Raise ValueError if the settings cannot work."""
        ...

    def create(self, run_dir: Path) -> Tracker:
        """A tracker for the run in this directory."""
        ...

    def finish_sweep(self, sweep_dir: Path, status: str, artifacts: Sequence[Path] = (), description: str = "") -> None:
        """End the record of the sweep in this directory.

        artifacts: files to add to it. description: Markdown its page shows, such as the table of jobs.
        """
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
    """Schema of ``tracking: none``.

    pictures: draw the graph, the curves and the confusion matrix; graph.dot and tables are written in any case.
    """

    name: str = "none"
    pictures: bool = True

    def check(self) -> None:
        """Nothing can be wrong."""

    def create(self, run_dir: Path) -> Tracker:
        """A tracker that records nothing."""
        return NullTracker()

    def finish_sweep(self, sweep_dir: Path, status: str, artifacts: Sequence[Path] = (), description: str = "") -> None:
        """Do nothing."""


def job_name(swept: Mapping[str, str]) -> str:
    """Name a job of a sweep by its swept values; short, for lists that show twenty characters.

    The option of a group stands for itself, other keys are cut to their last part where that stays unambiguous:
    ``{"optimizer.lr": "0.1", "parallelism": "single"}`` gives "lr=0.1 single". No secret is in it.
    """
    shown = {key: str(redact(value, key)) for key, value in swept.items()}
    return " ".join(
        value if _is_option(key, value) else f"{short}={value}"
        for short, (key, value) in zip(_short_keys(shown), shown.items(), strict=True)
    )


def sweep_name(swept: Collection[str]) -> str:
    """Name a sweep by the keys it varies, in the same short form: "sweep lr, parallelism"."""
    return f"sweep {', '.join(_short_keys(swept))}".rstrip()


def _is_option(key: str, value: str) -> bool:
    """Whether the value says by itself what it is: the name of an option, of a key that is not a nested one."""
    return "." not in key and value.isidentifier() and value not in _NAMELESS


def _short_keys(keys: Collection[str]) -> list[str]:
    last_parts = [key.rsplit(".", 1)[-1] for key in keys]
    return [part if last_parts.count(part) == 1 else key for part, key in zip(last_parts, keys, strict=True)]
