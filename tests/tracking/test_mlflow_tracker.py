"""System metrics in the record of a run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.tracking import MlflowTracking
from tests.tracking.recorded import a_run, stored_steps


def test_system_metrics_are_recorded(uri: str, client: Any, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    tracker = MlflowTracking(uri=uri).create(tmp_path)
    tracker.start(run)
    tracker.log_metrics(7, {"train/loss": 1.0})
    tracker.finish("finished")
    assert stored_steps(client, run, "system/cpu_utilization_percentage") == [7]


class _BusyMonitor:
    """Samples three times as the run begins and once more as it ends."""

    def __init__(self, every_s: float, on_sample: Callable[[Mapping[str, float]], None]) -> None:
        self._on_sample = on_sample

    def start(self) -> None:
        for value in range(3):
            self._on_sample({"system/run_memory_usage_megabytes": float(value)})

    def stop(self) -> None:
        self._on_sample({"system/run_memory_usage_megabytes": 3.0})


def test_a_step_has_one_system_sample_however_long_it_takes(
    uri: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.tracking.mlflow_tracker.SystemMonitor", _BusyMonitor)
    run = a_run(tmp_path)
    tracker = MlflowTracking(uri=uri).create(tmp_path)
    tracker.start(run)
    tracker.log_metrics(4, {"train/loss": 1.0})
    tracker.finish("finished")
    assert stored_steps(client, run, "system/run_memory_usage_megabytes") == [0, 4]
