"""The ZeroMQ context of a process: created explicitly, passed as an argument, and ended within a time limit.

There is no global context. Threads may share a context but not its sockets: each socket belongs to the thread that
created it.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from runner.errors import ClusterError, ResourceError

OLDEST_LIBZMQ = (4, 3, 5)
"""Older versions have known vulnerabilities that a peer can exploit."""

TERMINATION_S = 5.0
"""Time limit for ending a context, in seconds; sockets linger for at most one second."""

_OTHER_DESCRIPTORS = 256
"""Descriptors reserved for files, logs, shared memory and Python itself."""

if zmq.zmq_version_info() < OLDEST_LIBZMQ:
    raise ResourceError(
        f"libzmq {zmq.zmq_version()} is too old, expected {'.'.join(map(str, OLDEST_LIBZMQ))}: "
        "install pyzmq 27 or newer, whose wheels contain it"
    )

Context = zmq.Context[zmq.Socket[bytes]]


@contextmanager
def open_context(connections: int) -> Iterator[Context]:
    """Open a context for about ``connections`` connections; all its sockets must be closed before the exit.

    Raises ResourceError if the limit of file descriptors is too low, because libzmq would abort; ClusterError if
    ending the context takes longer than ``TERMINATION_S``.
    """
    _require_descriptors(_OTHER_DESCRIPTORS + 2 * connections)
    context: Context = zmq.Context(io_threads=1)
    try:
        yield context
    finally:
        _terminate(context)


def _require_descriptors(count: int) -> None:
    """Raise the soft limit of open files to at least ``count``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise ResourceError(
            f"{count} open files needed, the limit is {hard}: raise it (ulimit -Hn) or use fewer workers"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _terminate(context: Context) -> None:
    """End the context in a thread, because libzmq waits for open sockets without a time-out."""
    thread = threading.Thread(target=context.term, name="zmq-termination", daemon=True)
    thread.start()
    thread.join(TERMINATION_S)
    if thread.is_alive():
        raise ClusterError(f"the ZeroMQ context did not end within {TERMINATION_S:g} s: a socket was not closed")
