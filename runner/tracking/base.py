"""The interface of experiment tracking, and the tracker that records nothing.

A tracker never delays a step or ends a run: every method except ``finish`` returns in microseconds. If the tracking
store does not accept a record, the record is kept in the spool (a file in the run directory) and the failure is logged.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.system.redaction import redact
from runner.tracking.records import DataSplit, ExportedModel

STATUSES = ("finished", "diverged", "simulated", "failed", "interrupted")
NO_NETWORK, BEST_NETWORK, LAST_NETWORK = NETWORKS = ("none", "best", "last")
_NAMELESS = ("none", "null", "true", "false")


@dataclass(frozen=True)
class RunInfo:
    """The run that a tracker records.

    run_id: the identifier of the run, which does not change when the run is resumed.
    name: the name in the store's user interface; a job of a sweep is named by its swept values (``job_name``).
    run_dir: the run's directory, which holds the spool.
    tags: facts about the run that are not configuration, such as the git commit.
    first_step: lowest step that this process will log, 0 for a new run. On a resume, the tracker restores
        metric values of steps before ``first_step`` from ``history`` if the store does not hold them.
    history: the run's metrics.jsonl, or None to restore nothing.
    sweep_dir, sweep_name: directory and name of the sweep of which this run is a job; None and "" for a single run.
    """

    run_id: str
    name: str
    run_dir: Path
    tags: Mapping[str, str] = field(default_factory=dict)
    first_step: int = 0
    history: Path | None = None
    sweep_dir: Path | None = None
    sweep_name: str = ""


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep, for its record in the store.

    status: one of ``STATUSES``. artifacts: files to add to the record. description: Markdown to show on the record's
    page. params: swept key -> its values, as text. metrics: name -> value, such as numbers of jobs and the best value.
    """

    status: str
    artifacts: Sequence[Path] = ()
    description: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class Tracker:
    """A recorder of one run: call ``start``, then ``log_*`` and ``set_tags`` any number of times, then ``finish``.

    This class records nothing: every method returns immediately. Subclasses override the methods to write to a store.
    """

    def start(self, run: RunInfo) -> None:
        """Begin, or continue, the record of ``run``; do not wait for the store."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record a configuration; nested mappings become dotted keys."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a step: ``section/name`` -> value, with a section of ``metrics_log.SECTIONS``."""

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Copy a file into the record, below ``folder``. The file must not change until ``finish`` returns."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set facts about the run; a later value replaces an earlier one."""

    def log_data(self, split: DataSplit) -> None:
        """Record a split of the dataset as an input of the run."""

    def log_model(self, model: ExportedModel) -> None:
        """Record a network. Its folder must not change until ``finish`` returns."""

    def finish(self, status: str) -> None:
        """Write the pending records and end the record with one of ``STATUSES``; wait for a limited time only."""


class Tracking:
    """The settings of one kind of tracking, which is one option of the configuration group ``tracking``."""

    name: str
    pictures: bool

    def check(self) -> None:
        """Raise ValueError if the settings are invalid."""

    def create(self, run_dir: Path) -> Tracker:
        """Return a tracker for the run in this directory; by default one that records nothing."""
        return Tracker()

    @property
    def exports(self) -> str:
        """The network that is recorded as a model at the end of a run: one of ``NETWORKS``."""
        return NO_NETWORK

    def finish_sweep(self, sweep_dir: Path, result: SweepResult) -> None:
        """End the record of the sweep in this directory."""


@dataclass
class NoTracking(Tracking):
    """Schema of ``tracking: none``.

    pictures: whether to draw the graph, the curves and the confusion matrix; graph.dot and tables are always written.
    """

    name: str = "none"
    pictures: bool = True


def job_name(swept: Mapping[str, str]) -> str:
    """Return a short name for a job of a sweep, made of its swept values without secrets.

    The option of a configuration group is shown without the group. Other keys are shortened to their last part if that
    part is unique: ``{"optimizer.lr": "0.1", "parallelism": "single"}`` gives "lr=0.1 single".
    """
    shown = {key: str(redact(value, key)) for key, value in swept.items()}
    return " ".join(
        # If the key has no dot and the value is an identifier, the value is an option of a configuration group.
        value if "." not in key and value.isidentifier() and value not in _NAMELESS else f"{short}={value}"
        for short, (key, value) in zip(_short_keys(shown), shown.items(), strict=True)
    )


def sweep_name(swept: Collection[str], directory: Path) -> str:
    """Return the name of a sweep: the name of its directory, so that two sweeps differ, and the keys that it varies.

    A sweep over a learning rate in multirun/2026-01-31/12-00-00 is "sweep 12-00-00: lr".
    """
    return f"sweep {directory.name}: {', '.join(_short_keys(swept))}".removesuffix(": ")


DESCRIPTION_TAG = "mlflow.note.content"  # tag with the Markdown that a store shows as the description of a run
SEED = "seed"
GROUP_TAG = "runner.group"  # tag of the jobs of a sweep; jobs that differ only in their seed have the same value


def group_of(swept: Mapping[str, str], directory: Path) -> str:
    """Return the group of a job: its swept values without the seed, and its sweep, such as "lr=0.1 (12-00-00)"."""
    others = {key: value for key, value in swept.items() if key != SEED}
    return f"{job_name(others)} ({directory.name})".lstrip()


def _short_keys(keys: Collection[str]) -> list[str]:
    last_parts = [key.rsplit(".", 1)[-1] for key in keys]
    return [part if last_parts.count(part) == 1 else key for part, key in zip(last_parts, keys, strict=True)]
