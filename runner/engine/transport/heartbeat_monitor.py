"""The master's side of the progress heartbeat: who is silent, and who is stuck.

A pure state machine. Times are seconds of a monotonic clock that the caller reads, so that tests turn the
clock by hand. The caller drains its inbox before each :meth:`HeartbeatMonitor.tick`; otherwise beats that
have arrived but were not read look like silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from runner.engine.transport.messages import IDLE, LOAD, SAVE, SETUP, STEP

DEFAULT_LIMITS_S: Mapping[str, float] = {SETUP: 120.0, LOAD: 300.0, STEP: 300.0, SAVE: 600.0}
"""Seconds without progress after which a section counts as stuck. A worker without work is never stuck."""

SILENCE_S = 10.0
"""Seconds without any heartbeat after which a worker counts as silent: twenty beats."""


class Reason(StrEnum):
    """What is wrong with a worker."""

    SILENT = "silent"
    STUCK = "stuck"


@dataclass(frozen=True)
class Verdict:
    """A worker that broke a limit: it was last heard (SILENT) or last moved (STUCK) at ``since``."""

    worker: str
    reason: Reason
    section: str
    step: int
    since: float
    age_s: float
    limit_s: float

    def __str__(self) -> str:
        where = f"section {self.section!r} at step {self.step}"
        if self.reason is Reason.SILENT:
            return (
                f"{self.worker} is silent: no heartbeat for {self.age_s:.1f} s (limit {self.limit_s:g} s), "
                f"last heard in {where}"
            )
        return (
            f"{self.worker} is stuck: {where} has taken {self.age_s:.1f} s (limit {self.limit_s:g} s), "
            "though its heartbeats come"
        )


@dataclass
class _Watched:
    section: str
    step: int
    moved: float
    heard: float | None = None


class HeartbeatMonitor:
    """Watches workers by the heartbeats they send."""

    def __init__(self, limits_s: Mapping[str, float] = DEFAULT_LIMITS_S, silence_s: float = SILENCE_S) -> None:
        """``limits_s``: section -> seconds without progress. A section not in it has no limit."""
        if IDLE in limits_s:
            raise ValueError(f"section {IDLE!r} can have no limit: a worker may wait for work for ever")
        self._limits_s = dict(limits_s)
        self._silence_s = silence_s
        self._watched: dict[str, _Watched] = {}

    def watch(self, worker: str, now: float) -> None:
        """Begin to watch a worker that was started at ``now``: it is in setup until it says otherwise."""
        self._watched[worker] = _Watched(SETUP, 0, moved=now)

    def forget(self, worker: str) -> None:
        """Stop watching a worker that has left."""
        del self._watched[worker]

    def heartbeat(self, worker: str, section: str, step: int, now: float) -> None:
        """Take in a heartbeat read at ``now``; any change of section or step is progress.

        One from a worker that is not watched says nothing: it was under way when the worker was forgotten.
        """
        watched = self._watched.get(worker)
        if watched is None:
            return
        if (section, step) != (watched.section, watched.step):
            watched.section, watched.step, watched.moved = section, step, now
        watched.heard = now

    def tick(self, now: float) -> list[Verdict]:
        """Return who breaks a limit at ``now``, the longest first: the first failure is the root cause."""
        verdicts = [self._judge(worker, watched, now) for worker, watched in self._watched.items()]
        return sorted(filter(None, verdicts), key=lambda verdict: (verdict.since, verdict.worker))

    def _judge(self, worker: str, watched: _Watched, now: float) -> Verdict | None:
        # Before its first beat a worker is a starting process, for which the limit of setup stands.
        if watched.heard is not None and now - watched.heard > self._silence_s:
            return self._verdict(worker, watched, Reason.SILENT, watched.heard, now, self._silence_s)
        limit_s = self._limits_s.get(watched.section)
        if limit_s is not None and now - watched.moved > limit_s:
            return self._verdict(worker, watched, Reason.STUCK, watched.moved, now, limit_s)
        return None

    @staticmethod
    def _verdict(worker: str, watched: _Watched, reason: Reason, since: float, now: float, limit_s: float) -> Verdict:
        return Verdict(worker, reason, watched.section, watched.step, since, now - since, limit_s)
