"""Options of all ZeroMQ sockets. Times are in milliseconds, as in libzmq.

No socket sends ZMTP heartbeats. All peers are processes of this host, where the kernel closes the connections of a
dead process; and a process that was stopped by a debugger must find its connections open when it continues.
"""

from __future__ import annotations

import math
from typing import Any

import zmq

from runner.engine.cluster.transport.documents import MAX_DOCUMENT_BYTES
from runner.engine.cluster.transport.endpoint import Limits
from runner.engine.cluster.transport.header import MAX_HEADER_BYTES

LINGER_MS = 1000
HANDSHAKE_MS = 2000
CONNECTIONS_PER_PEER = 3

Socket = zmq.Socket[bytes]


def configure_inbox(socket: Socket, limits: Limits) -> None:
    """Set the options of a ROUTER that receives from all peers, before it is bound."""
    _configure(
        socket,
        limits,
        {
            zmq.BACKLOG: 16 + CONNECTIONS_PER_PEER * (limits.peers + limits.servers),
            zmq.RCVHWM: limits.queued_messages,
            # An inbox never sends; if it ever did, sending to an unknown peer must be an error.
            zmq.ROUTER_MANDATORY: 1,
        },
    )


def configure_outbox(socket: Socket, limits: Limits) -> None:
    """Set the options of a DEALER that sends to one peer, before it is connected."""
    _configure(
        socket,
        limits,
        {
            zmq.SNDHWM: limits.queued_messages,
            zmq.RCVHWM: 1,
            # Queue only for a peer that has completed the handshake; otherwise a send without a peer would succeed.
            zmq.IMMEDIATE: 1,
            # After a reconnection, the sequence numbers would not start at 0 and queued messages would be lost, so the
            # sender must get an error instead.
            zmq.RECONNECT_IVL: -1,
        },
    )


def milliseconds(seconds: float) -> int:
    """Return ``seconds`` in whole milliseconds, rounded up: a short wait must not become a busy one."""
    return math.ceil(seconds * 1000)


def _configure(socket: Socket, limits: Limits, special: dict[Any, int]) -> None:
    send_timeout_ms = milliseconds(limits.send_timeout_s)
    common = {
        zmq.LINGER: LINGER_MS,
        zmq.SNDTIMEO: send_timeout_ms,
        zmq.RCVTIMEO: send_timeout_ms,
        zmq.MAXMSGSIZE: MAX_DOCUMENT_BYTES + MAX_HEADER_BYTES,
        zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
    }
    for option, value in (common | special).items():
        socket.setsockopt(option, value)
