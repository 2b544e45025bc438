"""Receiving over ZeroMQ: one ROUTER socket per process, to which all peers connect."""

import time
from collections.abc import Sequence

import zmq

from runner.engine.cluster.transport.address import check_bind_address, inbox_path
from runner.engine.cluster.transport.admission import Admission
from runner.engine.cluster.transport.endpoint import Identity, Limits, Received
from runner.engine.cluster.transport.zmq_sockets import Context, Socket, configure_inbox, milliseconds
from runner.errors import ClusterError

_MAX_PARTS = 3
"""The routing id that ROUTER prepends, a header and a document."""

_FINAL_MESSAGE_MS = 100


class Inbox:
    """A bound ROUTER socket and the admission of its messages. For one thread."""

    def __init__(self, context: Context, identity: Identity, address: str, limits: Limits) -> None:
        """Bind. Raises SecurityError for an address that other users can reach, ClusterError for one in use."""
        check_bind_address(address)
        self.admission = Admission(identity, limits.peers, limits.servers)
        self._path = inbox_path(address) if address.startswith("ipc://") else None
        if self._path is not None and self._path.exists():
            # libzmq would silently replace the socket of the path's owner.
            raise ClusterError(f"{identity.name}: {self._path} exists; another process has that role and index")
        self._socket: Socket = context.socket(zmq.ROUTER)
        configure_inbox(self._socket, limits)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._socket.close()
            raise ClusterError(f"{identity.name} cannot listen on {address}: {error.strerror}") from error
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)

    def wake_on(self, descriptors: Sequence[int]) -> None:
        """End a wait in :meth:`receive` also when one of these, such as a pidfd, becomes readable."""
        for descriptor in descriptors:
            self._poller.register(descriptor, zmq.POLLIN)

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next admitted message; None after ``timeout_s`` seconds or when a descriptor woke the wait.

        A message has priority over a descriptor, even while libzmq's thread is still transferring it, so that the last
        message of a process is read before its death is noticed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            parts = self._take()
            if parts is not None:
                received = self._admit(parts)
                if received is not None:
                    return received
                if time.monotonic() < deadline:
                    continue
                return None
            remaining_s = max(0.0, deadline - time.monotonic())
            ready = dict(self._poller.poll(milliseconds(remaining_s)))
            if not ready or not (self._socket in ready or self._socket.poll(_FINAL_MESSAGE_MS)):
                return None

    def close(self) -> None:
        """Close the socket and remove its file, which libzmq leaves behind."""
        if not self._socket.closed:
            self._socket.close()
            if self._path is not None:
                self._path.unlink(missing_ok=True)

    def _take(self) -> list[zmq.Frame] | None:
        """Return the parts of one message, or None if no message is there.

        If a message has too many parts, one more than allowed is kept, so that admission refuses the message.
        """
        try:
            parts = [self._socket.recv(zmq.NOBLOCK, copy=False)]
        except zmq.Again:
            return None
        while self._socket.getsockopt(zmq.RCVMORE):
            part = self._socket.recv(zmq.NOBLOCK, copy=False)
            if len(parts) <= _MAX_PARTS:
                parts.append(part)
        return parts

    def _admit(self, parts: Sequence[zmq.Frame]) -> Received | None:
        connection = parts[0].bytes
        header = parts[1].buffer if len(parts) > 1 else memoryview(b"")
        frames = tuple(part.buffer.toreadonly() for part in parts[2:])
        return self.admission.admit(connection, header, frames)
