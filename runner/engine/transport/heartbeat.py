"""The worker's side of the progress heartbeat.

ZMTP's own heartbeat is answered by libzmq's thread: it notices a dead peer, never a stuck one. This one
says what the *main loop* is busy with. It comes from a thread with a connection of its own, so that neither
a long kernel nor a large save keeps it from being sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import zmq

from runner.engine.transport.messages import SETUP, Heartbeat
from runner.engine.transport.names import MASTER
from runner.errors import ClusterError, RunnerError

INTERVAL_S = 0.5
_STOP_S = 15.0
"""Seconds that stopping may take: longer than the time-out of a connection that is being made."""


class Link(Protocol):
    """What the thread sends through: an outbox that is connected to the master."""

    def offer(self, peer: str, message: Heartbeat) -> bool:
        """Queue the message if there is room right now; return whether there was."""

    def close(self) -> None:
        """Close the connection."""


class Progress:
    """What the main loop is busy with: written by it, read by the heartbeat thread.

    One attribute holds one tuple, so a reader sees section and step of the same moment without a lock.
    """

    def __init__(self) -> None:
        self._now = (SETUP, 0)

    def enter(self, section: str, step: int) -> None:
        """Say that the main loop begins ``section`` (one of ``messages.SECTIONS``) at ``step``."""
        self._now = (section, step)

    @property
    def now(self) -> Heartbeat:
        """The message that says where the main loop is."""
        return Heartbeat(*self._now)


class HeartbeatThread:
    """Sends :class:`Progress` to the master every ``interval_s`` seconds. A context manager."""

    def __init__(self, open_link: Callable[[], Link], progress: Progress, interval_s: float = INTERVAL_S) -> None:
        """``open_link`` makes the connection. The thread calls it, because sockets belong to threads."""
        self._open_link = open_link
        self._progress = progress
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def check(self) -> None:
        """Raise what ended the thread, if anything did; for the main loop to call between steps."""
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> HeartbeatThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(_STOP_S)
        if self._thread.is_alive() and error is None:
            raise ClusterError(f"the heartbeat thread did not end within {_STOP_S:g} s")

    def _run(self) -> None:
        try:
            link = self._open_link()
            try:
                self._beat_until_stopped(link)
            finally:
                link.close()
        except (RunnerError, zmq.ZMQError) as error:
            self._failure = error

    def _beat_until_stopped(self, link: Link) -> None:
        while True:
            # A beat for which there is no room is left out: a master that does not read does not judge
            # either, and the beats it finds when it reads again say enough.
            link.offer(MASTER, self._progress.now)
            if self._stopping.wait(self._interval_s):
                return
