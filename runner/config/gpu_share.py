"""Which GPUs of a machine a job has that runs beside others: the GPUs are dealt out as the cores are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.kernels.gpu.driver import GpuFacts


@dataclass(frozen=True)
class GpuShare:
    """The share of one job.

    jobs: how many run at the same time. place: of this one among them, from 0; one of ``jobs`` or more begins anew.
    """

    place: int = 0
    jobs: int = 1

    def of(self, gpus: Sequence[GpuFacts]) -> Sequence[GpuFacts]:
        """Its GPUs: neighbours that no other job has, as evenly as possible; one in turn where there are fewer GPUs
        than jobs."""
        place = self.place % self.jobs
        each, more = divmod(len(gpus), self.jobs)
        if not each:
            return gpus[place % len(gpus) :][:1] if gpus else gpus
        first = place * each + min(place, more)
        return gpus[first : first + each + (place < more)]

    def text(self, gpus: Sequence[GpuFacts]) -> str:
        """What the job has of ``gpus``, for its log."""
        own = ", ".join(str(gpu.number) for gpu in self.of(gpus))
        shared = ", shared with other jobs" if len(gpus) < self.jobs else ""
        return f"{self.jobs} jobs of the sweep run at a time: this one has GPU {own} of {len(gpus)}{shared}"


ALL_GPUS = GpuShare()
"""Of a run that has the machine to itself."""
