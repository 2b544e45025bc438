"""The tracker that records in MLflow, its settings, and the sampling of system metrics."""

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil

from runner.bounds import Bounds, Count
from runner.tracking.base import STATUSES, RunInfo, Tracker, Tracking
from runner.tracking.mlflow_client import flat_params, resolve_uri, safe_tags
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.mlflow_sweep import end_parent
from runner.tracking.origin import Origin
from runner.tracking.records import Artifact, End, Metrics, Params, Record, Tags, now_ms
from runner.tracking.spool import Spool
from runner.tracking.writer import BackgroundWriter, StoreUnavailableError

_MEGABYTE = 1e6


class SystemMonitor:
    """A thread that samples system metrics every ``every_s`` seconds; a shorter run is sampled once, at its end.

    on_sample: function that the thread calls with each sample, as returned by :class:`SystemSampler`.
    """

    def __init__(self, every_s: float, on_sample: Callable[[Mapping[str, float]], None]) -> None:
        self._every_s = every_s
        self._on_sample = on_sample
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-monitor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; no sample is taken after this method returns."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        # The sampler is created on this thread, because psutil measures CPU use between two calls on one thread.
        sampler = SystemSampler()
        sampled = False
        while not self._stop.wait(self._every_s):
            self._on_sample(sampler.sample())
            sampled = True
        if not sampled:
            self._on_sample(sampler.sample())


class SystemSampler:
    """A sampler of CPU and memory use; the first three metrics have the same names as in MLflow's own monitor.

    CPU use is measured since the previous sample or the creation of the sampler. Use a sampler on one thread only.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        # The first call on a thread returns a meaningless 0.0 and begins the interval that the second call reports.
        psutil.cpu_percent()

    def sample(self) -> dict[str, float]:
        """Return the metrics: ``system/name`` -> value."""
        memory = psutil.virtual_memory()
        return {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_megabytes": memory.used / _MEGABYTE,
            "system/system_memory_usage_percentage": memory.percent,
            "system/run_memory_usage_megabytes": self._resident_bytes() / _MEGABYTE,
        }

    def _resident_bytes(self) -> int:
        """Return the resident memory of this process and its child processes."""
        total = self._process.memory_info().rss
        for child in self._process.children(recursive=True):
            try:
                total += child.memory_info().rss
            except psutil.NoSuchProcess:  # it has ended and uses no memory
                continue
        return int(total)


SPOOL_FILE = "tracking-spool.jsonl"
_log = logging.getLogger(__name__)


@dataclass
class MlflowTracking(Tracking):
    """Schema of ``tracking: mlflow``.

    experiment: the MLflow experiment of the runs.
    uri: the tracking store; null for the environment variable MLFLOW_TRACKING_URI or, if it is not set, mlflow.db in
    the working directory.
    pictures: see :class:`~runner.tracking.base.NoTracking`.
    system_metrics: record CPU and memory use every ``system_metrics_every_s`` seconds.
    queue_size: largest number of records kept in memory; further records go to a file in the run directory (the spool).
    finish_timeout_s: longest wait at a run's end for the store to accept the pending records; remaining records are
    written at the end of the run's sweep, or by ``runner sync``.
    """

    name: str = "mlflow"
    experiment: str = "runner"
    uri: str | None = None
    pictures: bool = True
    system_metrics: bool = True
    system_metrics_every_s: Annotated[float, Bounds(0.01, 86_400)] = 5.0
    queue_size: Count = 10_000
    finish_timeout_s: Annotated[float, Bounds(0, 86_400, above=True)] = 60.0

    def check(self) -> None:
        """Raise ValueError if the settings are invalid; neither import MLflow nor access the store."""
        self.store_uri()
        if not self.experiment.strip():
            raise ValueError("tracking.experiment is empty: expected a name")

    def store_uri(self) -> str:
        """Return the address of the store for runs that start in the current working directory."""
        return resolve_uri(self.uri, Path.cwd())

    def create(self, run_dir: Path) -> "MlflowTracker":
        """Return a tracker for the run in this directory."""
        return MlflowTracker(self, self.store_uri(), run_dir)

    def finish_sweep(self, sweep_dir: Path, status: str, artifacts: Sequence[Path] = (), description: str = "") -> None:
        """Add files and a description to the parent run of the sweep, and end it; a failure of the store is logged."""
        end = End(status, now_ms())
        try:
            end_parent(self.store_uri(), self.experiment, sweep_dir, end, artifacts, description)
        except StoreUnavailableError as error:
            _log.warning("the record of the sweep in %s is incomplete: %s", sweep_dir, error)


class MlflowTracker(Tracker):
    """A tracker of one run in MLflow. A ``BackgroundWriter`` writes on a separate thread and handles failures."""

    def __init__(self, settings: MlflowTracking, uri: str, run_dir: Path) -> None:
        self._settings = settings
        self._uri = uri
        self._spool = Spool(run_dir / SPOOL_FILE)
        self._writer: BackgroundWriter | None = None
        every_s = settings.system_metrics_every_s
        self._monitor = SystemMonitor(every_s, self._record_system) if settings.system_metrics else None
        self._step = 0
        self._sampled_step: int | None = None

    def start(self, run: RunInfo) -> None:
        """Begin or continue the record; the writer's thread imports MLflow and opens the store."""
        self._step = run.first_step

        def kept(record: Record) -> bool:
            """Return whether to keep a record in the spool: False if this process will record it again."""
            return not isinstance(record, End) and not (isinstance(record, Metrics) and record.step >= run.first_step)

        self._spool.keep(kept)
        origin = Origin.begun(self._uri, self._settings.experiment, run)
        first = origin.run(run.run_dir)
        run = dataclasses.replace(run, name=first.name, sweep_dir=first.sweep_dir, sweep_name=first.sweep_name)
        store = MlflowStore(self._uri, self._settings.experiment, run, origin.started_ms)
        self._writer = BackgroundWriter(store, self._spool, queue_size=self._settings.queue_size)
        self.set_tags(run.tags)
        self._writer.start()
        if self._monitor is not None:
            self._monitor.start()

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record a configuration. If a resumed run changes the value of a key, MLflow keeps the first value."""
        self._put(Params(flat_params(params)))

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the values of a step."""
        self._step = step
        self._put(Metrics(int(step), now_ms(), {key: float(value) for key, value in metrics.items()}))

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Copy a file into the record, below ``folder``."""
        self._put(Artifact(str(path.absolute()), folder))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set facts about the run."""
        self._put(Tags(safe_tags(tags)))

    def finish(self, status: str) -> None:
        """End the record within ``finish_timeout_s``; records that were not written stay in the spool file."""
        if status not in STATUSES:
            raise ValueError(f"status {status!r}: expected one of {', '.join(STATUSES)}")
        if self._monitor is not None:
            self._monitor.stop()
        self._put(End(status, now_ms()))
        self._started().finish(self._settings.finish_timeout_s)

    def _record_system(self, values: Mapping[str, float]) -> None:
        """Record a sample at the current step; a curve has at most one point for each step."""
        if self._step != self._sampled_step:
            self._sampled_step = self._step
            self._put(Metrics(self._step, now_ms(), values))

    def _put(self, record: Record) -> None:
        self._started().put(record)

    def _started(self) -> BackgroundWriter:
        if self._writer is None:
            raise RuntimeError("the tracker has not been started: call start() first")
        return self._writer
