"""How the monitored metric stands after some evaluations: the best so far, and how long nothing better has come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner.config.monitor import Monitor

_PREFIX = "monitor/"


@dataclass(frozen=True)
class Standing:
    """What the evaluations of a run came to.

    best, best_step: the best value and the updates after which it first came; None before any. reference: what the
    next value must be better than to count as an improvement; None before any. waited: evaluations since then without
    one. Values that are not finite are no better than none.
    """

    best: float | None = None
    best_step: int | None = None
    reference: float | None = None
    waited: int = 0

    def seen(self, monitor: Monitor, step: int, value: float) -> Standing:
        """The standing after ``value`` was measured after ``step`` updates."""
        if not math.isfinite(value) or not (self.best is None or monitor.better(value, self.best)):
            return self
        return replace(self, best=value, best_step=step)

    def counted(self, monitor: Monitor, value: float, min_delta: float) -> Standing:
        """The standing after one more evaluation that patience counts. An improvement is more than ``min_delta``."""
        if math.isfinite(value) and (self.reference is None or self._improves(monitor, value, min_delta)):
            return replace(self, reference=value, waited=0)
        return replace(self, waited=self.waited + 1)

    def uncounted(self) -> Standing:
        """The standing of a run that waits for nothing: should it later, it begins to count then."""
        return replace(self, reference=None, waited=0)

    def to_progress(self) -> dict[str, float]:
        """The numbers that :meth:`from_progress` reads; a checkpoint keeps them."""
        values = {"best": self.best, "best_step": self.best_step, "reference": self.reference, "waited": self.waited}
        return {_PREFIX + name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_progress(cls, progress: Mapping[str, float]) -> Standing:
        """The standing that a checkpoint kept; of a run without evaluations where it kept none."""
        step = progress.get(_PREFIX + "best_step")
        return cls(
            progress.get(_PREFIX + "best"),
            None if step is None else int(step),
            progress.get(_PREFIX + "reference"),
            int(progress.get(_PREFIX + "waited", 0)),
        )

    def _improves(self, monitor: Monitor, value: float, min_delta: float) -> bool:
        assert self.reference is not None
        return monitor.better(value, self.reference + (min_delta if monitor.highest else -min_delta))
