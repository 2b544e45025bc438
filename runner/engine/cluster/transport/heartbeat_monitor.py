"""The master's side of the heartbeat: detect workers that are silent or stuck.

A pure state machine. Times are seconds of a monotonic clock that the caller reads, so that tests can set them. Before
each :meth:`HeartbeatMonitor.tick` the caller reads all messages that have arrived; otherwise unread heartbeats look
like silence. If the caller itself was stopped or busy, it calls :meth:`HeartbeatMonitor.restart` first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from runner.engine.cluster.transport.messages import IDLE, LOAD, SETUP, STEP

DEFAULT_LIMITS_S: Mapping[str, float] = {SETUP: 120.0, LOAD: 300.0, STEP: 300.0}
"""Seconds without progress after which a section counts as stuck. A worker without work is never stuck."""

SILENCE_S = 10.0
"""Seconds without any heartbeat after which a worker counts as silent: twenty beats."""


class Reason(StrEnum):
    """What is wrong with a worker."""

    SILENT = "silent"
    STUCK = "stuck"


@dataclass(frozen=True)
class Verdict:
    """A worker beyond a limit. since: time of its last heartbeat (SILENT) or last progress (STUCK)."""

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
            "though its heartbeats arrive"
        )


@dataclass
class _Watched:
    section: str
    step: int
    progressed: float
    heard: float | None = None


class HeartbeatMonitor:
    """Watches workers by the heartbeats they send."""

    def __init__(self, limits_s: Mapping[str, float] = DEFAULT_LIMITS_S, silence_s: float = SILENCE_S) -> None:
        """``limits_s``: section -> seconds without progress. A section not in it has no limit."""
        if IDLE in limits_s:
            raise ValueError(f"section {IDLE!r} cannot have a limit: a worker may wait for work indefinitely")
        self._limits_s = dict(limits_s)
        self._silence_s = silence_s
        self.gap_s = min([silence_s, *self._limits_s.values()]) / 2
        """Seconds between two ticks after which the caller must restart, because it was stopped or busy itself."""
        self._watched: dict[str, _Watched] = {}

    def watch(self, worker: str, now: float) -> None:
        """Begin to watch a worker started at ``now``; it counts as in setup until its first heartbeat."""
        self._watched[worker] = _Watched(SETUP, 0, progressed=now)

    def restart(self, now: float) -> None:
        """Count silence and missing progress of all workers from ``now``: the caller could not observe them before."""
        for watched in self._watched.values():
            watched.progressed = now
            watched.heard = None if watched.heard is None else now

    def forget(self, worker: str) -> None:
        """Stop watching a worker that has left."""
        del self._watched[worker]

    def heartbeat(self, worker: str, section: str, step: int, now: float) -> None:
        """Handle a heartbeat read at ``now``; any change of section or step is progress.

        A heartbeat of an unwatched worker is ignored: it was sent before the worker was forgotten.
        """
        watched = self._watched.get(worker)
        if watched is None:
            return
        if (section, step) != (watched.section, watched.step):
            watched.section, watched.step, watched.progressed = section, step, now
        watched.heard = now

    def tick(self, now: float) -> list[Verdict]:
        """Return the workers beyond a limit at ``now``, the longest first: the first failure is the likely cause."""
        verdicts = [self._check(worker, watched, now) for worker, watched in self._watched.items()]
        return sorted(filter(None, verdicts), key=lambda verdict: (verdict.since, verdict.worker))

    def _check(self, worker: str, watched: _Watched, now: float) -> Verdict | None:
        # Before its first heartbeat a worker is still starting; the limit of setup applies.
        if watched.heard is not None and now - watched.heard > self._silence_s:
            return self._verdict(worker, watched, Reason.SILENT, watched.heard, now, self._silence_s)
        limit_s = self._limits_s.get(watched.section)
        if limit_s is not None and now - watched.progressed > limit_s:
            return self._verdict(worker, watched, Reason.STUCK, watched.progressed, now, limit_s)
        return None

    @staticmethod
    def _verdict(worker: str, watched: _Watched, reason: Reason, since: float, now: float, limit_s: float) -> Verdict:
        return Verdict(worker, reason, watched.section, watched.step, since, now - since, limit_s)
