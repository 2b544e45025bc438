"""The settings of tracking with MLflow."""

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from runner.bounds import Bounds, Count
from runner.tracking.base import NETWORKS, NO_NETWORK, RunInfo, SweepResult, Tracking
from runner.tracking.mlflow_client import resolve_experiment, resolve_uri
from runner.tracking.mlflow_store import MlflowStore, end_parent
from runner.tracking.origin import Origin
from runner.tracking.queued import QueuedTracker
from runner.tracking.records import now_ms
from runner.tracking.writer import Store, StoreUnavailableError

_log = logging.getLogger(__name__)


@dataclass
class MlflowTracking(Tracking):
    """Schema of ``tracking: mlflow``.

    experiment: the MLflow experiment of the runs; null for the environment variable MLFLOW_EXPERIMENT_NAME or, if it is
    not set, "runner".
    uri: the tracking store; null for the environment variable MLFLOW_TRACKING_URI or, if it is not set, mlflow.db in
    the working directory.
    log_model: the network that is recorded as an MLflow model at the end of a run: none, best or last.
    pictures: see :class:`~runner.tracking.base.NoTracking`.
    system_metrics: record CPU and memory use every ``system_metrics_every_s`` seconds; off by default, as in MLflow.
    queue_size: largest number of records kept in memory; further records go to a file in the run directory (the spool).
    finish_timeout_s: longest wait at a run's end for the store to accept the pending records; remaining records are
    written at the end of the run's sweep, or by ``runner sync``.
    """

    name: str = "mlflow"
    experiment: str | None = None
    uri: str | None = None
    log_model: str = NO_NETWORK
    pictures: bool = True
    system_metrics: bool = False
    system_metrics_every_s: Annotated[float, Bounds(0.01, 86_400)] = 5.0
    queue_size: Count = 10_000
    finish_timeout_s: Annotated[float, Bounds(0, 86_400, above=True)] = 60.0

    def check(self) -> None:
        """Raise ValueError if the settings are invalid; neither import MLflow nor access the store."""
        self.store_uri()
        if not resolve_experiment(self.experiment).strip():
            raise ValueError("tracking.experiment is empty: expected a name")
        if self.log_model not in NETWORKS:
            raise ValueError(f"tracking.log_model={self.log_model}: expected one of {', '.join(NETWORKS)}")

    def store_uri(self) -> str:
        """Return the address of the store for runs that start in the current working directory."""
        return resolve_uri(self.uri, Path.cwd())

    @property
    def exports(self) -> str:
        return self.log_model

    def create(self, run_dir: Path) -> QueuedTracker:
        """Return the tracker of a run. The writer's thread imports MLflow."""
        uri, experiment = self.store_uri(), resolve_experiment(self.experiment)

        def store(run: RunInfo) -> Store:
            origin = Origin.begun(uri, experiment, run)
            first = origin.run(run.run_dir)
            named = dataclasses.replace(run, name=first.name, sweep_dir=first.sweep_dir, sweep_name=first.sweep_name)
            return MlflowStore(uri, experiment, named, origin.started_ms)

        every_s = self.system_metrics_every_s if self.system_metrics else None
        return QueuedTracker(
            run_dir, store, queue_size=self.queue_size, finish_timeout_s=self.finish_timeout_s, system_every_s=every_s
        )

    def finish_sweep(self, sweep_dir: Path, result: SweepResult) -> None:
        """Add the result of a sweep to its parent run, and end that run; a failure of the store is logged."""
        try:
            end_parent(self.store_uri(), resolve_experiment(self.experiment), sweep_dir, result, now_ms())
        except StoreUnavailableError as error:
            _log.warning("the record of the sweep in %s is incomplete: %s", sweep_dir, error)
