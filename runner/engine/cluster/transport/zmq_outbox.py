"""Sending over ZeroMQ: one DEALER socket per peer, connected to the peer's inbox."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from runner.engine.cluster.transport.address import inbox_path
from runner.engine.cluster.transport.endpoint import Frame, Identity, Limits
from runner.engine.cluster.transport.header import check_frames, encode_header
from runner.engine.cluster.transport.messages import Hello, Message
from runner.engine.cluster.transport.zmq_sockets import HANDSHAKE_MS, Context, Socket, configure_outbox, milliseconds
from runner.errors import ClusterError


@dataclass
class _Connection:
    """A connected socket and the sequence number of its next message."""

    socket: Socket
    address: str
    sequence: int = 0


class Outbox:
    """All outgoing connections of one peer. For one thread."""

    def __init__(self, context: Context, identity: Identity, limits: Limits) -> None:
        self._context = context
        self._identity = identity
        self._limits = limits
        self._connections: dict[str, _Connection] = {}

    def connect(self, peer: str, address: str) -> None:
        """Connect to the inbox of ``peer`` and send hello; see
        :class:`~runner.engine.cluster.transport.endpoint.Endpoint`.

        The inbox must be bound already.
        """
        if peer in self._connections:
            raise ValueError(f"{self._identity.name} is connected to {peer} already")
        if address.startswith("ipc://") and not inbox_path(address).exists():
            raise ClusterError(f"{self._identity.name} cannot reach {peer}: no process listens on {address}")
        self._connections[peer] = _Connection(self._shake_hands(peer, address), address)
        identity = self._identity
        self.send(peer, Hello(identity.role, identity.index, os.getpid(), identity.token))

    def send(self, peer: str, message: Message, frames: Sequence[Frame] = ()) -> None:
        """Queue a message for ``peer``; see :class:`~runner.engine.cluster.transport.endpoint.Endpoint`."""
        if not self._queue(peer, message, frames, flags=0):
            raise ClusterError(
                f"{self._identity.name} could not send {message.kind!r} to {peer} for "
                f"{self._limits.send_timeout_s:g} s: it is gone, or its queue of "
                f"{self._limits.queued_messages} messages stays full"
            )

    def offer(self, peer: str, message: Message) -> bool:
        """Queue a message if there is room; return whether there was."""
        return self._queue(peer, message, (), flags=zmq.NOBLOCK)

    def close(self) -> None:
        """Close all connections; queued messages may still be sent while the sockets linger."""
        for connection in self._connections.values():
            connection.socket.close()

    def _queue(self, peer: str, message: Message, frames: Sequence[Frame], flags: int) -> bool:
        connection = self._connections[peer]
        views = [memoryview(frame) for frame in frames]
        check_frames(message, views)
        header = encode_header(self._identity.envelope(connection.sequence), message)
        try:
            connection.socket.send_multipart([header, *views], flags)
        except zmq.Again:
            return False
        connection.sequence += 1
        return True

    def _shake_hands(self, peer: str, address: str) -> Socket:
        """Return a socket after a successful handshake; a handshake that times out is repeated.

        Attempts are counted instead of time: a process that was stopped during an attempt loses only that attempt.
        """
        limit_ms = milliseconds(self._limits.connect_timeout_s)
        for _ in range(math.ceil(limit_ms / HANDSHAKE_MS)):
            socket: Socket = self._context.socket(zmq.DEALER)
            configure_outbox(socket, self._limits)
            socket.connect(address)
            if socket.poll(min(limit_ms, HANDSHAKE_MS), zmq.POLLOUT):
                return socket
            socket.close(linger=0)
        raise ClusterError(
            f"{self._identity.name} cannot reach {peer} on {address}: no answer within "
            f"{self._limits.connect_timeout_s:g} s"
        )
