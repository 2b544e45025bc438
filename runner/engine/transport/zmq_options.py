"""Options of every ZeroMQ socket, in one place. Times are in milliseconds, as libzmq has them."""

from __future__ import annotations

import math
from typing import Any

import zmq

from runner.engine.transport.documents import MAX_DOCUMENT_BYTES
from runner.engine.transport.endpoint import Limits
from runner.engine.transport.header import MAX_HEADER_BYTES

LINGER_MS = 1000
HANDSHAKE_MS = 2000
HEARTBEAT_MS = 5000
HEARTBEAT_TIMEOUT_MS = 30_000
CONNECTIONS_PER_PEER = 3

Socket = zmq.Socket[bytes]


def configure_inbox(socket: Socket, limits: Limits) -> None:
    """Set the options of a ROUTER that receives from all peers; before it is bound.

    It sends no ZMTP heartbeats of its own: libzmq reads nothing from a connection whose queue is full, so it would
    miss the answers and cut connections only because their messages had not been taken yet. The outboxes ask.
    """
    _configure(
        socket,
        limits,
        {
            zmq.BACKLOG: 16 + CONNECTIONS_PER_PEER * (limits.peers + limits.servers),
            zmq.RCVHWM: limits.queued_messages,
            # An inbox never sends. Should it ever, then not silently into nothing.
            zmq.ROUTER_MANDATORY: 1,
        },
    )


def configure_outbox(socket: Socket, limits: Limits, pings: bool) -> None:
    """Set the options of a DEALER that sends to one peer; before it is connected.

    ``pings``: whether ZMTP heartbeats go over this connection. The progress heartbeat's does without: it is a
    heartbeat itself, and it must survive that nobody reads it for hours.
    """
    heartbeats = {
        zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
        zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
        zmq.HEARTBEAT_TTL: HEARTBEAT_TIMEOUT_MS,
    }
    _configure(
        socket,
        limits,
        {
            **(heartbeats if pings else {}),
            zmq.SNDHWM: limits.queued_messages,
            zmq.RCVHWM: 1,
            # Queue only for a peer that has shaken hands: otherwise a send to nobody would succeed.
            zmq.IMMEDIATE: 1,
            # A new connection would begin in the middle of the numbering, and what the old one had queued
            # is lost already. The sender must get an error, not a second chance it knows nothing of.
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
        zmq.MAXMSGSIZE: max(limits.frame_bytes, MAX_DOCUMENT_BYTES) + MAX_HEADER_BYTES,
        zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
    }
    for option, value in (common | special).items():
        socket.setsockopt(option, value)
