"""Runs that tests record, and their content in the store."""

import uuid
from pathlib import Path
from typing import Any

from runner.tracking import MetricsLog, MlflowTracking, RunInfo
from runner.tracking.mlflow_store import RUN_ID_TAG


def a_run(tmp_path: Path, **fields: Any) -> RunInfo:
    return RunInfo(run_id=uuid.uuid4().hex, name="a run", run_dir=tmp_path, **fields)


def stored_run(client: Any, run: RunInfo) -> Any:
    experiment = client.get_experiment_by_name("runner").experiment_id
    (found,) = client.search_runs([experiment], f"tags.`{RUN_ID_TAG}` = '{run.run_id}'")
    return found


def stored_steps(client: Any, run: RunInfo, key: str) -> list[int]:
    return sorted(metric.step for metric in client.get_metric_history(stored_run(client, run).info.run_id, key))


def record(settings: MlflowTracking, run: RunInfo, steps: range, status: str = "finished") -> None:
    """Record like the training loop: every metric in metrics.jsonl and in the tracker."""
    history = run.run_dir / "metrics.jsonl"
    tracker = settings.create(run.run_dir)
    with MetricsLog(history, run.first_step) as log:
        tracker.start(run)
        for step in steps:
            values = {"train/loss": 1.0 / (step + 1)}
            log.append(step, values)
            tracker.log_metrics(step, values)
    tracker.finish(status)
