"""The sampling of CPU and memory use during a run."""

import threading
from collections.abc import Callable, Mapping

import psutil

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
    """A sampler of CPU and memory use; the first three metrics have the names of MLflow's own monitor.

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
            except psutil.NoSuchProcess:  # the child has ended and uses no memory
                continue
        return int(total)
