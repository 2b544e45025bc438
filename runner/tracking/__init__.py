"""Experiment tracking in MLflow (the store) or in files only, the file metrics.jsonl, and plots of a run.

Read in this order:

* ``base``: the interface. ``metrics_log``: metrics.jsonl. ``plots``: plots and tables.
* ``records``: the kinds of tracking records. ``writer``: the thread that writes records to the store. ``spool``: a file
  of records that are not yet in the store. ``origin``, ``replay``: how another process writes these to the store.
* ``mlflow_tracker``, ``mlflow_store``, ``mlflow_sweep``, ``mlflow_client``: MLflow.
"""

from runner.tracking.base import NoTracking, RunInfo, Tracker, Tracking, job_name, sweep_name
from runner.tracking.metrics_log import MetricsLog, read_metrics
from runner.tracking.mlflow_tracker import MlflowTracker, MlflowTracking

TRACKERS: dict[str, type[Tracking]] = {"mlflow": MlflowTracking, "none": NoTracking}

__all__ = [
    "TRACKERS",
    "MetricsLog",
    "MlflowTracker",
    "MlflowTracking",
    "NoTracking",
    "RunInfo",
    "Tracker",
    "Tracking",
    "job_name",
    "read_metrics",
    "sweep_name",
]
