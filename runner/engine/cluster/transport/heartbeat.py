"""Heartbeats: a thread of each worker sends them, and the master detects workers that are silent or stuck.

A heartbeat reports the current section of the *main loop*. ZMTP heartbeats, sent by libzmq, have no section. The
heartbeat thread has a separate connection, so that neither a long kernel nor a large save delays the heartbeats.

:class:`HeartbeatMonitor` is a pure state machine. The caller passes all times, in seconds of a monotonic clock, so that
tests can choose them. Before each ``tick``, the caller reads all messages that have arrived; otherwise unread
heartbeats look like silence. If the caller was stopped or busy, it calls ``restart`` first.
"""

import math
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from queue import SimpleQueue

import zmq

from runner.engine.cluster.transport.messages import LOAD, MASTER, SETUP, STEP, Bye, Heartbeat, Log
from runner.engine.cluster.transport.zmq_endpoint import Outbox
from runner.errors import ClusterError, RunnerError

INTERVAL_S = 0.5
MOST_UNSENT = 3
_STOP_S = 15.0  # time limit in seconds for stopping the thread


class Progress:
    """The current section and step of the main loop, written by the main loop and read by the heartbeat thread.

    One attribute holds one tuple, so that section and step are consistent without a lock.
    """

    def __init__(self) -> None:
        self._now = (SETUP, 0)

    def enter(self, section: str, step: int) -> None:
        """Record that the main loop begins ``section`` (one of ``messages.SECTIONS``) at ``step``."""
        self._now = (section, step)

    @property
    def now(self) -> Heartbeat:
        """The heartbeat with the current section and step."""
        return Heartbeat(*self._now)


class HeartbeatThread:
    """A thread that sends :class:`Progress` to the master every ``interval_s`` seconds. A context manager."""

    def __init__(
        self,
        open_outbox: Callable[[], Outbox],
        progress: Progress,
        interval_s: float = INTERVAL_S,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """``open_outbox``: opens and connects the outbox in the new thread, because a socket belongs to its thread.

        lost: called in the thread if ``MOST_UNSENT`` heartbeats in a row cannot be sent: the connection may be closed.
        """
        self.lines: SimpleQueue[str] = SimpleQueue()  # lines of the worker's log, which the thread sends to the master
        self._lost = lost
        self._open_outbox = open_outbox
        self._progress = progress
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def check(self) -> None:
        """Raise the error that ended the thread, if any; the main loop calls this between steps."""
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> "HeartbeatThread":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_STOP_S)
        if self._thread.is_alive() and kind is None:
            raise ClusterError(f"the heartbeat thread did not end within {_STOP_S:g} s")

    def _run(self) -> None:
        try:
            with closing(self._open_outbox()) as outbox:
                unsent, line = 0, ""
                while True:
                    # If the queue is full, this heartbeat is skipped. A master that reads no messages does not check
                    # heartbeats either. When it reads again, it receives the queued heartbeats.
                    unsent = 0 if outbox.offer(MASTER, self._progress.now) else unsent + 1
                    if unsent == MOST_UNSENT:
                        self._lost()
                    stopping = self._stopping.wait(self._interval_s)
                    while line or not self.lines.empty():
                        line = line or self.lines.get()
                        if stopping:
                            outbox.send(MASTER, Log(line))
                        elif not outbox.offer(MASTER, Log(line)):
                            break
                        line = ""
                    if stopping:
                        outbox.send(MASTER, Bye())
                        return
        except (RunnerError, zmq.ZMQError) as error:
            self._failure = error


DEFAULT_LIMITS_S: Mapping[str, float] = {SETUP: 120.0, LOAD: 300.0, STEP: 300.0}
"""Section -> seconds without progress after which a worker counts as stuck. An idle worker never counts as stuck."""

SILENCE_S = 10.0  # seconds without any heartbeat after which a worker counts as silent: twenty times ``INTERVAL_S``
STOPPED_S = 1.5  # seconds without any heartbeat after which a worker stopped by a signal such as SIGSTOP counts as lost


class Reason(StrEnum):
    """The kind of a worker's failure."""

    SILENT = "silent"
    STOPPED = "stopped"
    STUCK = "stuck"


@dataclass(frozen=True)
class Verdict:
    """A worker that exceeds a limit. since: time of its last heartbeat or, if ``reason`` is STUCK, last progress."""

    worker: str
    reason: Reason
    section: str
    step: int
    since: float
    age_s: float
    limit_s: float

    def __str__(self) -> str:
        where, age = f"section {self.section!r} at step {self.step}", f"{self.age_s:.1f} s (limit {self.limit_s:g} s)"
        if self.reason is Reason.STUCK:
            return f"{self.worker} is stuck: no progress in {where} for {age}, although heartbeats arrive"
        return f"{self.worker} is {self.reason}: no heartbeat for {age}; the last one came from {where}"


@dataclass
class _Watched:
    section: str
    step: int
    progressed: float
    heard: float | None = None


class HeartbeatMonitor:
    """A monitor that detects silent and stuck workers from their heartbeats."""

    def __init__(self, limits_s: Mapping[str, float] = DEFAULT_LIMITS_S, silence_s: float = SILENCE_S) -> None:
        """``limits_s``: section -> seconds without progress. A section without an entry has no limit."""
        self._limits_s = dict(limits_s)
        self._silence_s = silence_s
        self.gap_s = min([silence_s, *self._limits_s.values()]) / 2
        """If more seconds pass between ticks, the caller was stopped or busy and must call :meth:`restart` first."""
        self._watched: dict[str, _Watched] = {}
        self._ticked = self._attentive_since = -math.inf

    def watch(self, worker: str, now: float) -> None:
        """Begin to watch a worker started at ``now``; until its first heartbeat, its section is setup."""
        self._watched[worker] = _Watched(SETUP, 0, progressed=now)

    def restart(self, now: float) -> None:
        """Restart all time limits at ``now``, because the caller was stopped or busy and did not read heartbeats."""
        for watched in self._watched.values():
            watched.progressed = now
            watched.heard = None if watched.heard is None else now

    def forget(self, worker: str) -> None:
        """Stop watching a worker that has left, if it is watched."""
        self._watched.pop(worker, None)

    def heartbeat(self, worker: str, section: str, step: int, now: float) -> None:
        """Handle a heartbeat read at ``now`` of a watched worker; any change of section or step is progress."""
        watched = self._watched.get(worker)
        if watched is None:
            return
        if (section, step) != (watched.section, watched.step):
            watched.section, watched.step, watched.progressed = section, step, now
        watched.heard = now

    def has_heard(self, worker: str) -> bool:
        """Return whether a worker is watched and has sent a heartbeat."""
        return worker in self._watched and self._watched[worker].heard is not None

    def silence_s(self, worker: str, now: float) -> float:
        """Return the seconds since the last heartbeat of a worker; 0 before its first one."""
        watched = self._watched.get(worker)
        return 0.0 if watched is None or watched.heard is None else now - watched.heard

    def tick(self, now: float, is_stopped: Callable[[str], bool] = lambda worker: False) -> list[Verdict]:
        """Return the workers that exceed a limit at ``now``, ordered by ``since``: the first is likely the cause.

        is_stopped: returns whether the operating system reports a worker's process as stopped. An overloaded machine
        delays heartbeats but stops no process, so the limit for stopped workers is shorter.
        """
        if now - self._ticked > STOPPED_S / 2:
            self._attentive_since = now  # If all processes were stopped, this one may continue before the workers.
        self._ticked = now
        verdicts = [self._check(worker, watched, now, is_stopped) for worker, watched in self._watched.items()]
        return sorted(filter(None, verdicts), key=lambda verdict: (verdict.since, verdict.worker))

    def _check(self, worker: str, watched: _Watched, now: float, is_stopped: Callable[[str], bool]) -> Verdict | None:
        # Before its first heartbeat a worker is still starting; the limit of setup applies.
        heard = watched.heard
        if heard is not None and now - heard > self._silence_s:
            reason, since, limit_s = Reason.SILENT, heard, self._silence_s
        elif heard is not None and now - max(heard, self._attentive_since) > STOPPED_S and is_stopped(worker):
            reason, since, limit_s = Reason.STOPPED, heard, STOPPED_S
        else:
            reason, since, limit_s = Reason.STUCK, watched.progressed, self._limits_s.get(watched.section, math.inf)
        if now - since <= limit_s:
            return None
        return Verdict(worker, reason, watched.section, watched.step, since, now - since, limit_s)
