"""Experiment tracking (MLflow, TensorBoard or no store), the file metrics.jsonl, and plots of a run.

Read in this order:

* ``base``: the interface. ``metrics_log``: metrics.jsonl. ``plots``: plots and tables.
  ``diagrams``: a graph and a timeline. ``table_picture``: a table as a picture.
* ``records``: the kinds of tracking records. ``queued``: the tracker that queues records. ``writer``: the thread that
  writes records to the store. ``spool``: a file of records that are not yet in the store. ``system_monitor``:
  samples of the machine's load.
* ``mlflow_tracker``, ``mlflow_store``, ``mlflow_run``, ``mlflow_client``: MLflow.
* ``origin``, ``replay``: writing spooled records to MLflow from another process.
* ``tensorboard``: event files.
"""

from runner.tracking.base import NoTracking, RunInfo, Tracker, Tracking, job_name, sweep_name
from runner.tracking.metrics_log import MetricsLog, read_metrics
from runner.tracking.mlflow_tracker import MlflowTracking
from runner.tracking.tensorboard import TensorboardTracking

TRACKERS: dict[str, type[Tracking]] = {"mlflow": MlflowTracking, "tensorboard": TensorboardTracking, "none": NoTracking}

__all__ = [
    "TRACKERS",
    "MetricsLog",
    "MlflowTracking",
    "NoTracking",
    "RunInfo",
    "Tracker",
    "Tracking",
    "job_name",
    "read_metrics",
    "sweep_name",
]
