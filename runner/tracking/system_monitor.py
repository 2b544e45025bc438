"""The sampling of CPU and memory use during a run."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import psutil

_MEGABYTE = 1e6


class SystemMonitor:
    """A thread that samples system metrics every ``every_s`` seconds; a shorter run is sampled once, at its end.

    on_sample: function that the thread calls with each sample, as returned by :func:`system_metrics`.
    """

    def __init__(self, every_s: float, on_sample: Callable[[Mapping[str, float]], None]) -> None:
        self._every_s = every_s
        self._on_sample = on_sample
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; no sample is taken after this method returns."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        # The first call on a thread returns a meaningless 0.0 and begins the interval that the second call reports.
        psutil.cpu_percent()
        sampled = False
        while not self._stop.wait(self._every_s):
            self._on_sample(system_metrics())
            sampled = True
        if not sampled:
            self._on_sample(system_metrics())


def system_metrics() -> dict[str, float]:
    """Return CPU and memory use as metrics, ``system/name`` -> value. MLflow's monitor uses the first three names.

    CPU use is measured since the previous call of ``psutil.cpu_percent`` on the same thread.
    """
    memory = psutil.virtual_memory()
    return {
        "system/cpu_utilization_percentage": psutil.cpu_percent(),
        "system/system_memory_usage_megabytes": memory.used / _MEGABYTE,
        "system/system_memory_usage_percentage": memory.percent,
        "system/run_memory_usage_megabytes": _resident_bytes() / _MEGABYTE,
    }


def _resident_bytes() -> int:
    """Return the resident memory of this process and its child processes."""
    process = psutil.Process()
    total = process.memory_info().rss
    for child in process.children(recursive=True):
        # A child that has ended uses no memory.
        with suppress(psutil.NoSuchProcess):
            total += child.memory_info().rss
    return int(total)
