"""The ZeroMQ context of a process: made on purpose, passed to whom needs it, ended by a deadline.

There is no global one. A context may be shared by threads, its sockets may not: each socket belongs to the
thread that made it.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from runner.errors import ClusterError, ResourceError

OLDEST_LIBZMQ = (4, 3, 5)
"""Older ones have known holes that a peer can use."""

TERMINATION_S = 5.0
"""Seconds that ending a context may take; sockets linger for at most one."""

_DESCRIPTORS_BESIDE = 256
"""Descriptors left to files, logs, shared memory and Python itself."""

if zmq.zmq_version_info() < OLDEST_LIBZMQ:
    raise ResourceError(
        f"libzmq {zmq.zmq_version()} is too old, expected {'.'.join(map(str, OLDEST_LIBZMQ))}: "
        "install pyzmq 27 or newer, whose wheels carry it"
    )

Context = zmq.Context[zmq.Socket[bytes]]


@contextmanager
def open_context(connections: int) -> Iterator[Context]:
    """Give a context for about ``connections`` connections; on leaving all its sockets must be closed.

    Raises ResourceError when the process may not have enough file descriptors, because libzmq aborts without;
    ClusterError when ending the context takes longer than ``TERMINATION_S``.
    """
    _require_descriptors(_DESCRIPTORS_BESIDE + 2 * connections)
    context: Context = zmq.Context(io_threads=1)
    try:
        yield context
    finally:
        _terminate(context)


def _require_descriptors(count: int) -> None:
    """Raise the soft limit of open files to ``count`` where it is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise ResourceError(
            f"{count} open files needed, the limit is {hard}: raise it (ulimit -Hn) or use fewer workers"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _terminate(context: Context) -> None:
    """End the context in a thread: libzmq waits for open sockets without any time-out of its own."""
    thread = threading.Thread(target=context.term, name="zmq-termination", daemon=True)
    thread.start()
    thread.join(TERMINATION_S)
    if thread.is_alive():
        raise ClusterError(f"the ZeroMQ context did not end within {TERMINATION_S:g} s: a socket was not closed")
