"""The record of a run in progress: metrics in metrics.jsonl and in the tracker, and tags, plots and artifacts."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.config import safe_yaml
from runner.records.data_facts import FACTS_FILE
from runner.records.provenance import provenance_tags
from runner.records.run_directory import RunDirectory
from runner.records.stored_run import PLUGINS_FILE
from runner.records.summary import Summary
from runner.system.files import replace_durably
from runner.system.redaction import redact
from runner.tracking import MetricsLog, RunInfo, Tracker, read_metrics
from runner.tracking.base import DESCRIPTION_TAG
from runner.tracking.metrics_log import BEST
from runner.tracking.plots import confusion_matrix, learning_curves, staleness_histogram, staleness_table
from runner.tracking.records import DataSplit, ExportedModel

COMMIT_TAG = "mlflow.source.git.commit"  # tag that MLflow's pages show as the version of a run's code
CHANGED_TAG = "runner.changed"  # tag with the keys that can change the result and whose values are not the defaults


def summary_tags(summary: Summary) -> dict[str, str]:
    """Return the tags of a run, name -> text: its changed keys, and facts about it. Unknown facts are left out."""
    known = {
        CHANGED_TAG: ", ".join(_changed(summary)),
        "runner.run_dir": summary.output_dir,
        COMMIT_TAG: summary.git_commit,
        "runner.emulated": summary.emulated,
        "runner.simulated": "" if summary.simulation is None else "true",
        "runner.repeats": summary.repeats,
        "runner.plugins": ", ".join(f"{name} sha256:{digest}" for name, digest in summary.plugins.items()),
        "runner.cpu_model": summary.cpu_model,
        "runner.devices": ", ".join(f"{name} {what}" for name, what in summary.devices.items()),
        "runner.system": summary.platform,
        "runner.versions": ", ".join(f"{name} {version}" for name, version in summary.versions.items()),
        **({} if summary.provenance is None else provenance_tags(summary.provenance)),
    }
    return {tag: text for tag, text in known.items() if text}


_EVALUATED = ("val/", "test/")
_SCORED = ("train/", *_EVALUATED)
# Keys for recording and resuming, which do not change the result.
_NO_PARAMETERS = ("tracking", "resume", "trace", "trace_skip", "trace_steps")


def _changed(summary: Summary) -> list[str]:
    """Return, as "key=value", the changed keys that can change the result."""
    return [each for each in summary.changed if each.partition("=")[0].split(".")[0] not in _NO_PARAMETERS]


def description(summary: Summary, what: str) -> str:
    """Return Markdown about an ended run: its task, length, results and changed keys. what: the task, as text."""
    ended = f"{summary.status} after {summary.steps:,} updates ({summary.examples:,} examples)"
    lines = [f"**{what}**, {summary.workers} worker(s): {ended} in {summary.wall_seconds:.1f} s."]
    if summary.simulation is not None:
        lines.append(f"All times are predicted. Training takes {summary.simulation.hours:,.2f} hours.")
    last = [f"{name} {value:.4g}" for name, value in summary.final.items() if name.startswith(_EVALUATED)]
    if last:
        lines.append(f"Last: {', '.join(last)}.")
    if summary.best_value is not None:
        lines.append(f"Best {summary.monitor}: {summary.best_value:.4g}, after {summary.best_step:,} updates.")
    if summary.error is not None:
        lines.append(f"{summary.error.class_name}: {summary.error.message}")
    changed = ", ".join(f"`{override}`" for override in _changed(summary))
    return " ".join(lines) + (f"\n\nChanged: {changed}" if changed else "")


STALENESS = "staleness"
"""Key, in ``StepDriver.record``, of the counts of pushes: for each parameter server, staleness -> number of pushes."""


class Record:
    """A recorder of the metrics, tags, plots and artifacts of a run in progress. pictures: whether to draw plots."""

    def __init__(self, directory: RunDirectory, tracker: Tracker, info: RunInfo, pictures: bool = True) -> None:
        self._directory = directory
        self._pictures = pictures
        self._tracker = tracker
        self._scores: dict[int, Mapping[str, float]] = {}
        self._tracked: dict[str, int] = {}
        self._log = MetricsLog(directory.metrics_jsonl, info.first_step)
        tracker.start(info)

    def configuration(self, plain: Mapping[str, Any]) -> None:
        """Record the configuration without secrets as a file, and the keys that affect the result as parameters."""
        self._tracker.log_params({key: value for key, value in plain.items() if key not in _NO_PARAMETERS})
        shown, path = redact(plain), self._directory.config_yaml
        if shown != plain:
            path = self._directory.shown_config_yaml
            path.parent.mkdir(exist_ok=True)
            path.write_text(safe_yaml.dump(shown), encoding="utf-8")
        self._tracker.log_artifact(path)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._log.append(step, values)
        self._keep_scores(step, values)
        # The tracker already has the values of steps that the run repeats after :meth:`rewind`.
        if new := {name: value for name, value in values.items() if step > self._tracked.get(name, -1)}:
            self._tracked |= dict.fromkeys(new, step)
            self._tracker.log_metrics(step, new)

    def rewind(self, step: int) -> None:
        """Remove the lines after ``step`` from metrics.jsonl, because the run repeats the later steps."""
        self._log.rewind(step + 1)
        self._scores = {each: scores for each, scores in self._scores.items() if each <= step}

    def sync(self) -> None:
        """Flush the metrics to the disk; called before each checkpoint, so that a crash loses no earlier metrics."""
        self._log.sync()

    def plots(self, confusion: NDArray[np.int64] | None, class_names: tuple[str, ...]) -> None:
        """Draw the learning curves and, for a classifier, the confusion matrix."""
        if not self._pictures:
            return
        curves = self._directory.plots / "learning_curves.png"
        self._tracker.log_artifact(learning_curves(self._directory.metrics_jsonl, curves), "plots")
        if confusion is not None:
            matrix = self._directory.plots / "confusion_matrix.png"
            self._tracker.log_artifact(confusion_matrix(confusion, class_names, matrix), "plots")

    def artifact(self, path: Path) -> None:
        self._tracker.log_artifact(path)

    def counts(self, counts: Mapping[str, Any]) -> None:
        """Record the step driver's counts, if any, as a file, and the staleness of pushes as a plot and a table."""
        if not counts:
            return
        path = self._directory.asynchronous_json
        replace_durably(path, (json.dumps(counts, indent=1) + "\n").encode())
        self._tracker.log_artifact(path)
        if STALENESS in counts:
            plots, pushes = self._directory.plots, counts[STALENESS]
            if self._pictures:
                self._tracker.log_artifact(staleness_histogram(pushes, plots / "staleness.png"), "plots")
            self._tracker.log_artifact(staleness_table(pushes, plots / "staleness.csv"), "plots")

    def data(self, splits: Iterable[DataSplit]) -> None:
        for split in splits:
            self._tracker.log_data(split)

    def model(self, model: ExportedModel) -> None:
        self._tracker.log_model(model)

    def best(self, step: int) -> None:
        """Record the metrics of the evaluation after ``step`` updates as "best/..." of this step."""
        if step not in self._scores:  # an earlier process made this evaluation
            for record in read_metrics(self._directory.metrics_jsonl):
                self._keep_scores(record.step, record.values)
        scores = self._scores.get(step, {})
        self._tracker.log_metrics(step, {f"{BEST}/{name}": value for name, value in scores.items()})

    def _keep_scores(self, step: int, values: Mapping[str, float]) -> None:
        if scores := {name: value for name, value in values.items() if name.startswith(_EVALUATED)}:
            self._scores[step] = scores

    def result(self, summary: Summary, what: str) -> None:
        """Record the description and the small files of an ended run. what: the task, as text."""
        tags = {DESCRIPTION_TAG: description(summary, what)}
        if summary.weights_sha256 is not None:
            tags["weights_sha256"] = summary.weights_sha256
        if summary.recoveries:
            tags["runner.recoveries"] = str(summary.recoveries)
        self._tracker.set_tags(tags)
        directory = self._directory
        files = [directory.summary_json, directory.log, directory.path / FACTS_FILE, directory.recoveries_jsonl]
        for path in [*files, *([directory.path / PLUGINS_FILE] if summary.plugins else [])]:
            if path.exists():
                self._tracker.log_artifact(path)

    def results(self, summary: Summary, best_step: int | None, smallest: Callable[[str], bool]) -> Summary:
        """Return the summary with the metrics of the whole run.

        best_step: step of the best checkpoint, None if there is none. smallest: function that returns whether low
        values of a metric, named without its split, are better.
        """
        final, best, headline, evaluated = dict[str, float](), dict[str, float](), dict[str, float](), set[int]()
        for record in read_metrics(self._directory.metrics_jsonl):
            final.update(record.values)
            scores = {name: value for name, value in record.values.items() if name.startswith(_SCORED)}
            # An evaluation that a resumed run repeats has the same step as before, so it is counted once.
            evaluated.update(record.step for name in scores if name.startswith(_EVALUATED))
            if best_step is None or record.step == best_step:
                headline.update(scores)
            for name, value in scores.items():
                if name.startswith(_EVALUATED):
                    pick, before = min if smallest(name.partition("/")[2]) else max, best.get(name, math.nan)
                    best[name] = value if math.isnan(before) else pick(before, value)
        return replace(summary, final=final, best=best, headline=headline, evaluations=len(evaluated))

    def training_losses(self) -> list[float]:
        """Return every logged training loss of the whole run, in order."""
        values = (record.values.get("train/loss") for record in read_metrics(self._directory.metrics_jsonl))
        return [value for value in values if value is not None]

    def close(self, status: str) -> None:
        """End the record with one of :data:`runner.tracking.base.STATUSES`."""
        self._log.close()
        self._tracker.finish(status)
