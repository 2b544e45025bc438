"""Experiment tracking by MLflow or not at all; metrics.jsonl and plots are written with any tracker."""

from runner.tracking.base import NoTracking, NullTracker, RunInfo, Tracker, Tracking, job_name, sweep_name
from runner.tracking.metrics_log import MetricsLog, read_metrics
from runner.tracking.mlflow_tracker import MlflowTracker, MlflowTracking

TRACKERS: dict[str, type[Tracking]] = {"mlflow": MlflowTracking, "none": NoTracking}

__all__ = [
    "TRACKERS",
    "MetricsLog",
    "MlflowTracker",
    "MlflowTracking",
    "NoTracking",
    "NullTracker",
    "RunInfo",
    "Tracker",
    "Tracking",
    "job_name",
    "read_metrics",
    "sweep_name",
]
