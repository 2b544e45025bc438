"""The ZeroMQ context of a process, and the options of its sockets. Time options are in milliseconds.

There is no global context: a context is created explicitly, passed as an argument, and ended within a time limit.
Threads may share a context but not its sockets: each socket belongs to the thread that created it.

Over ``ipc://``, no socket sends ZMTP heartbeats: the kernel closes the connections of a dead process, and a process
that was stopped by a debugger must find its connections open when it continues. Over TCP, the kernel does not report
that a host was cut off, so all sockets send heartbeats and close the connections of a peer that does not answer.
"""

import math
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import zmq

from runner.engine.cluster.transport.curve import allow_list, secure_inbox, secure_outbox
from runner.engine.cluster.transport.encoding import MAX_HEADER_BYTES
from runner.engine.cluster.transport.endpoint import Identity, Keys, Limits
from runner.engine.cluster.transport.messages import FRAME_BYTES, PART_BYTES, process_of
from runner.errors import ClusterError, ResourceError

OLDEST_LIBZMQ = (4, 3, 5)  # earlier versions of libzmq have known vulnerabilities that a peer can exploit
TERMINATION_S = 5.0  # time limit for ending a context, in seconds; sockets linger for at most one second
_OTHER_DESCRIPTORS = 256  # descriptors reserved for files, logs, shared memory and Python itself
_DESCRIPTORS_OVER_TCP = 65536  # descriptors of a process to which processes outside the run can also connect

if zmq.zmq_version_info() < OLDEST_LIBZMQ:
    raise ResourceError(
        f"libzmq {zmq.zmq_version()} is too old, expected {'.'.join(map(str, OLDEST_LIBZMQ))}: "
        "install pyzmq 27 or newer, whose wheels contain it"
    )

Context = zmq.Context[zmq.Socket[bytes]]


@contextmanager
def open_context(connections: int, keys: Keys | None = None, threads: int = 1, files: int = 0) -> Iterator[Context]:
    """Open a context for about ``connections`` connections. All its sockets must be closed in the ``with`` block.

    keys: the keys whose owners may connect to inboxes over TCP. Connections of other processes are closed after
    ``HANDSHAKE_MS``. threads: number of threads that transfer and encrypt bytes. files: number of other open files.

    Raises ResourceError if the limit of open files would make libzmq abort, ClusterError if the context does not end.
    """
    _require_descriptors(_OTHER_DESCRIPTORS + 2 * connections + files, 0 if keys is None else _DESCRIPTORS_OVER_TCP)
    context: Context = zmq.Context(io_threads=threads)
    try:
        with nullcontext() if keys is None else allow_list(context, keys):
            yield context
    finally:
        _terminate(context)


def _require_descriptors(count: int, wanted: int) -> None:
    """Increase the limit of open files to ``count``, if permitted ``wanted``; raises ResourceError below ``count``."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits)
    if hard < count:
        raise ResourceError(
            f"{count} open files are needed, but the limit is {hard}: raise the limit (ulimit -Hn) or use fewer workers"
        )
    if soft < (raised := min(max(count, wanted), hard)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, limits[1]))


def _terminate(context: Context) -> None:
    """End the context in a thread, because libzmq waits for open sockets without a time-out."""
    thread = threading.Thread(target=context.term, name="zmq-termination", daemon=True)
    thread.start()
    thread.join(TERMINATION_S)
    if thread.is_alive():
        raise ClusterError(f"the ZeroMQ context did not end within {TERMINATION_S:g} s: a socket was not closed")


LINGER_MS = 1000
HANDSHAKE_MS = 2000
CONNECTIONS_PER_PEER = 3
PEER_LOST_MS = 5000  # time without an answer after which the connection over TCP to a peer is closed

CREDIT_BYTES = 64 * 2**20
"""Bytes of tensors that one connection may deliver before the receiver reads. The sender keeps the rest.

libzmq counts messages, not bytes; the limit holds because a message has at most ``PART_BYTES`` of tensors. Documents,
which only processes of the run can send, may be longer.
"""

Socket = zmq.Socket[bytes]


def configure_inbox(socket: Socket, limits: Limits, keys: Keys | None) -> None:
    """Set the options of a ROUTER that receives from all peers; call this function before the socket is bound."""
    connections = (CONNECTIONS_PER_PEER + limits.lanes - 1) * (limits.peers + limits.servers + limits.spares)
    unread = limits.queued_messages
    if keys is not None:
        secure_inbox(socket, keys)
        unread = min(unread, CREDIT_BYTES // PART_BYTES)
    special = {
        zmq.BACKLOG: 16 + connections,
        zmq.RCVHWM: unread,
        # An inbox sends only refusals; sending to an unknown peer must be an error.
        zmq.ROUTER_MANDATORY: 1,
    }
    _configure(socket, limits, keys, special)


def configure_outbox(socket: Socket, limits: Limits, identity: Identity, peer: str) -> None:
    """Set the options of a DEALER that sends to ``peer``; call this function before the socket is connected."""
    if identity.keys is not None:
        secure_outbox(socket, identity.keys, process_of(identity.name), process_of(peer))
    special = {
        zmq.SNDHWM: limits.queued_messages,
        zmq.RCVHWM: 1,
        # Queue only for a peer that has completed the handshake; otherwise a send without a peer would succeed.
        zmq.IMMEDIATE: 1,
        # Never reconnect, so that the sender gets an error: a reconnection loses queued messages and sequence numbers.
        zmq.RECONNECT_IVL: -1,
    }
    _configure(socket, limits, identity.keys, special)


_OVER_TCP = {zmq.HEARTBEAT_IVL: PEER_LOST_MS // 5, zmq.HEARTBEAT_TIMEOUT: PEER_LOST_MS}
"""Options of sockets over TCP, in addition to the keys.

Both ends send PING and wait for PONG. HEARTBEAT_TTL is not used: its timer always runs, so a machine that was suspended
for longer than the limit would close all its connections before it reads the heartbeats that have arrived.
"""


def milliseconds(seconds: float) -> int:
    """Return ``seconds`` in whole milliseconds, rounded up: a short wait must not become a busy wait."""
    return math.ceil(seconds * 1000)


def _configure(socket: Socket, limits: Limits, keys: Keys | None, special: dict[Any, int]) -> None:
    send_timeout_ms = milliseconds(limits.send_timeout_s)
    common = {
        zmq.LINGER: LINGER_MS,
        zmq.SNDTIMEO: send_timeout_ms,
        zmq.RCVTIMEO: send_timeout_ms,
        zmq.MAXMSGSIZE: FRAME_BYTES + MAX_HEADER_BYTES,  # limits the memory that processes outside the run can occupy
        zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
    }
    for option, value in (common | special | (_OVER_TCP if keys is not None else {})).items():
        socket.setsockopt(option, value)
