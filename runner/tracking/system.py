"""System metrics: CPU and memory use of the machine, and memory use of this run."""

import threading
from collections.abc import Callable, Mapping

import psutil

_MEGABYTE = 1e6


class SystemMonitor:
    """Samples on a separate thread every ``every_s`` seconds; a shorter run is sampled at its end.

    on_sample: called on that thread with metrics in section ``system``.
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
        """End the thread; there is no sample after this returns."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        # Created here: psutil measures CPU time between two calls of the same thread.
        sampler = SystemSampler()
        sampled = False
        while not self._stop.wait(self._every_s):
            self._on_sample(sampler.sample())
            sampled = True
        if not sampled:
            self._on_sample(sampler.sample())


class SystemSampler:
    """Reads CPU and memory use; the first three names are those of MLflow's own monitor.

    CPU use is since the previous sample, or since the creation of the sampler, on the same thread.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        # The first call of a thread returns a meaningless 0.0 and starts the interval that the next one reports.
        psutil.cpu_percent()

    def sample(self) -> dict[str, float]:
        """Return metrics in section ``system``."""
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
