"""The worker's side of the heartbeat.

A heartbeat reports the current section of the *main loop*; the ZMTP heartbeat, which libzmq's thread answers, cannot.
A separate thread sends it on a separate connection, so that neither a long kernel nor a large save delays it.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import zmq

from runner.engine.cluster.transport.messages import SETUP, Heartbeat
from runner.engine.cluster.transport.names import MASTER
from runner.errors import ClusterError, RunnerError

INTERVAL_S = 0.5
_STOP_S = 15.0
"""Time limit for stopping the thread, longer than the connect time-out."""


class HeartbeatOutbox(Protocol):
    """The outbox of the thread, connected to the master."""

    def offer(self, peer: str, message: Heartbeat) -> bool:
        """Queue the message if there is room; return whether there was."""

    def close(self) -> None:
        """Close the connection."""


class Progress:
    """The current section and step of the main loop, which writes them; the heartbeat thread reads them.

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
    """Sends :class:`Progress` to the master every ``interval_s`` seconds. A context manager."""

    def __init__(
        self, open_outbox: Callable[[], HeartbeatOutbox], progress: Progress, interval_s: float = INTERVAL_S
    ) -> None:
        """``open_outbox`` connects; the thread itself calls it, because a socket belongs to its thread."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(_STOP_S)
        if self._thread.is_alive() and error is None:
            raise ClusterError(f"the heartbeat thread did not end within {_STOP_S:g} s")

    def _run(self) -> None:
        try:
            outbox = self._open_outbox()
            try:
                self._send_until_stopped(outbox)
            finally:
                outbox.close()
        except (RunnerError, zmq.ZMQError) as error:
            self._failure = error

    def _send_until_stopped(self, outbox: HeartbeatOutbox) -> None:
        while True:
            # A heartbeat without room in the queue is skipped: a master that does not read checks nothing either,
            # and finds the queued heartbeats when it reads again.
            outbox.offer(MASTER, self._progress.now)
            if self._stopping.wait(self._interval_s):
                return
