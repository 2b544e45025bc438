"""System metrics: what the machine, and this run on it, are using."""

from __future__ import annotations

import psutil

_MEGABYTE = 1e6


class SystemSampler:
    """Reads CPU and memory in use; the first three names are the ones MLflow's own monitor uses."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._due_s = 0.0
        self._process = psutil.Process()
        # The first call returns a meaningless 0.0 and starts the interval that the next one reports.
        psutil.cpu_percent()

    def sample_if_due(self, now_s: float) -> dict[str, float]:
        """Metrics in section ``system``; none while the last sample is recent.

        now_s: seconds of a monotonic clock.
        """
        if now_s < self._due_s:
            return {}
        self._due_s = now_s + self._every_s
        memory = psutil.virtual_memory()
        return {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_megabytes": memory.used / _MEGABYTE,
            "system/system_memory_usage_percentage": memory.percent,
            "system/run_memory_usage_megabytes": self._resident_bytes() / _MEGABYTE,
        }

    def _resident_bytes(self) -> int:
        """Resident memory of this process and the workers below it."""
        total = self._process.memory_info().rss
        for child in self._process.children(recursive=True):
            try:
                total += child.memory_info().rss
            except psutil.NoSuchProcess:  # it ended since it was listed, and uses nothing
                continue
        return int(total)
