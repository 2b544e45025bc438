"""An endpoint between processes: an inbox and an outbox over ZeroMQ.

Threads of libzmq transfer the bytes, so that messages are sent and received while Python computes. Over TCP, large
tensors have separate connections, so that they delay no other message and several threads can encrypt them.
"""

import logging
import math
import os
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from traceback import walk_stack
from types import FrameType

import zmq

from runner.engine.cluster.transport import messages, zmq_sockets
from runner.engine.cluster.transport.admission import Admission
from runner.engine.cluster.transport.curve import USER_ID
from runner.engine.cluster.transport.encoding import MAX_DOCUMENT_BYTES, check_frames, decode_header, encode_header
from runner.engine.cluster.transport.endpoint import Endpoint, Frame, Identity, Limits, Received
from runner.engine.cluster.transport.messages import DEVICE_ROLES, FRAME_BYTES, Message, TensorsPart
from runner.engine.cluster.transport.private_directory import check_bind_address, inbox_path
from runner.engine.cluster.transport.zmq_sockets import HANDSHAKE_MS, Context, Socket, configure_inbox, configure_outbox
from runner.errors import ClusterError, RunnerError, SecurityError
from runner.system.text import printable

log = logging.getLogger(__name__)

_MAX_PARTS = 2 + MAX_DOCUMENT_BYTES // FRAME_BYTES
"""Largest number of message parts: the routing id that ROUTER prepends, a header and the frames of a document."""

_EVENT = struct.Struct("=H")
"""First bytes of an event of a socket monitor. ``zmq.utils.monitor`` is not used, because it imports asyncio."""

_FINAL_MESSAGE_MS = 20
_ENDED_HANDSHAKES = 2  # number of handshakes that the other process must end at once before its key counts as wrong


@dataclass
class _Connection:
    """A connected socket and the sequence number of its next message."""

    socket: Socket
    sequence: int = 0


class Outbox:
    """All outgoing connections of one peer: DEALER sockets, connected to the inboxes of the receivers.

    ZeroMQ sockets are not thread-safe: all methods raise RuntimeError except in the thread that created the outbox.
    """

    def __init__(self, context: Context, identity: Identity, limits: Limits) -> None:
        self._thread = threading.get_ident()
        self._context = context
        self._identity = identity
        self._limits = limits
        self._connections: dict[str, list[_Connection]] = {}

    def connect(self, peer: str, address: str, facts: Mapping[str, str] | None = None, own_address: str = "") -> None:
        """Connect to a bound inbox and send hello. facts, own_address: sent with the hello of a process that joins."""
        self._check_thread()
        if peer in self._connections:
            raise ValueError(f"{self._identity.name} is already connected to {peer}")
        who = self._identity
        between_workers = who.role in DEVICE_ROLES and messages.split_name(peer)[0] in DEVICE_ROLES
        lanes = self._limits.lanes if between_workers and who.keys is not None else 1
        connections = self._connections[peer] = []
        for lane in range(lanes):
            try:
                connections.append(_Connection(self._shake_hands(peer, address)))
            except RunnerError:
                self.forget(peer)
                raise
            hello = messages.Hello(who.role, who.index, os.getpid(), who.token, lane, own_address, facts or {})
            self._queue(connections[lane], hello, (), flags=0)

    def send(self, peer: str, message: Message, frames: Sequence[Frame] = ()) -> None:
        """Queue a message for ``peer``; see :class:`~runner.engine.cluster.transport.endpoint.Endpoint`."""
        self._check_thread()
        if not self._queue(self._lane(peer, message, frames), message, frames, flags=0):
            raise ClusterError(
                f"{self._identity.name} could not send {message.kind!r} to {peer} within "
                f"{self._limits.send_timeout_s:g} s: {peer} has ended, or the queue of "
                f"{self._limits.queued_messages} messages to it is full"
            )

    def offer(self, peer: str, message: Message) -> bool:
        """Queue a message if there is room; return whether it was queued."""
        self._check_thread()
        return self._queue(self._connections[peer][0], message, (), flags=zmq.NOBLOCK)

    def closed(self) -> list[str]:
        """Return the peers to which a connection has ended or whose queue is full."""
        self._check_thread()
        return [
            peer
            for peer, connections in self._connections.items()
            if not all(each.socket.poll(0, zmq.POLLOUT) for each in connections)
        ]

    def advance(self, epoch: int, lost: Sequence[str] = ()) -> None:
        """Send all messages from now on in a new epoch. lost: peers whose connections are closed."""
        self._check_thread()
        self._identity = replace(self._identity, epoch=epoch)
        for peer in lost:
            self.forget(peer)

    def forget(self, peer: str) -> None:
        """Close the connection to ``peer``, if there is one; messages that were not sent are lost."""
        self._check_thread()
        for connection in self._connections.pop(peer, ()):
            connection.socket.close(linger=0)

    def close(self) -> None:
        """Close all connections; queued messages may still be sent while the sockets linger."""
        self._check_thread()
        for connection in chain.from_iterable(self._connections.values()):
            connection.socket.close()

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError(f"endpoint {self._identity.name} was used by a thread that did not create it")

    def _lane(self, peer: str, message: Message, frames: Sequence[Frame]) -> _Connection:
        """Return the first connection or, for a large part, another connection: the one with the fewest messages."""
        first, *others = self._connections[peer]
        if not others or not isinstance(message, TensorsPart) or sum(map(len, frames)) <= FRAME_BYTES:
            return first
        return min(others, key=lambda connection: connection.sequence)

    def _queue(self, connection: _Connection, message: Message, frames: Sequence[Frame], flags: int) -> bool:
        views = [memoryview(frame) for frame in frames]
        check_frames(message, views)
        cut = [view[start : start + FRAME_BYTES] for view in views for start in range(0, view.nbytes or 1, FRAME_BYTES)]
        header = encode_header(self._identity.envelope(connection.sequence), message)
        try:
            connection.socket.send_multipart([header, *cut], flags, copy=not isinstance(message, TensorsPart))
        except zmq.Again:
            return False
        connection.sequence += 1
        return True

    def _shake_hands(self, peer: str, address: str) -> Socket:
        """Return a socket after a successful handshake; a handshake that times out is repeated.

        The limit counts attempts instead of time: a process that was stopped during an attempt loses only that attempt.
        """
        own, limit_s = self._identity.name, self._limits.connect_timeout_s
        limit_ms = zmq_sockets.milliseconds(limit_s)
        attempts = math.ceil(limit_ms / HANDSHAKE_MS)
        unanswered = ended = 0
        while unanswered < attempts:
            gone = f"{own} cannot reach {peer}: no process listens on {address}"
            if address.startswith("ipc://") and not inbox_path(address).exists():
                raise ClusterError(gone)
            socket: Socket = self._context.socket(zmq.DEALER)
            configure_outbox(socket, self._limits, self._identity, peer)
            socket.setsockopt(zmq.IPV6, "[" in address)
            event = _connect(socket, address, min(limit_ms, HANDSHAKE_MS), has_keys=self._identity.keys is not None)
            if event is None:
                return socket
            socket.close(linger=0)
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise SecurityError(
                    f"{peer} on {address} refused the key of {own}: the key file is not from the current start of "
                    "the run; use the key file that this start has written"
                )
            if event == zmq.EVENT_CLOSED:
                advice = (
                    "" if self._identity.keys is None else "; check the address and whether the run is still waiting"
                )
                raise ClusterError(gone + advice)
            if event != zmq.EVENT_DISCONNECTED:
                unanswered += 1
                if unanswered == 1 < attempts:
                    log.warning("%s waits for %s on %s, which does not answer", own, peer, address)
                continue
            # A process that is killed can end one handshake, because the next connection to its address is refused. A
            # process that closes its connections before it ends can end more of them.
            ended += 1
            if ended == _ENDED_HANDSHAKES:
                raise SecurityError(
                    f"the process on {address} ended {ended} handshakes: its key is not the key of {peer} in the key "
                    f"file of {own}, or it was just ending; check the address, use the key file that the current start "
                    f"of the run has written, and see whether {peer} has ended"
                )
        raise ClusterError(f"{own} cannot reach {peer} on {address}: no answer within {limit_s:g} s")


def is_sending(frame: FrameType | None) -> bool:
    """Return whether ``frame``, which a signal has interrupted, belongs to the sending of a message."""
    return any(called.f_code is Outbox._queue.__code__ for called, _ in walk_stack(frame))


def _connect(socket: Socket, address: str, limit_ms: int, *, has_keys: bool) -> int | None:
    """Connect a socket; return None after the handshake, else the event that ended the attempt, or 0 for no answer.

    A refused connection ends the attempt: no process listens. has_keys: whether an ended handshake also ends the
    attempt. A handshake that ends late counts as no answer, because the other process is slow or stopped.
    """
    watched = zmq.EVENT_CLOSED | (zmq.EVENT_DISCONNECTED if has_keys else 0)
    with socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | watched) as events:
        begun = time.monotonic()
        try:
            socket.connect(address)
            poller = zmq.Poller()
            poller.register(socket, zmq.POLLOUT)
            poller.register(events, zmq.POLLIN)
            ready = dict(poller.poll(limit_ms))
            event = _EVENT.unpack_from(events.recv_multipart()[0])[0] if events in ready else 0
        finally:
            socket.disable_monitor()
    if socket in ready:
        return None
    is_late = time.monotonic() - begun > HANDSHAKE_MS / 2000
    return 0 if event == zmq.EVENT_DISCONNECTED and is_late else event


class ZmqEndpoint(Outbox, Endpoint):
    """An outbox and an inbox: one bound ROUTER to which all peers connect. Other threads open separate outboxes."""

    def __init__(self, context: Context, identity: Identity, address: str, limits: Limits) -> None:
        """Bind the inbox. Raises the errors of ``check_bind_address``, and ClusterError if the address is in use.

        The attribute ``address`` is the address of the inbox, with the port that the system chose for the port ``*``.
        """
        super().__init__(context, identity, limits)
        check_bind_address(address, has_keys=identity.keys is not None)
        self._admission = Admission(identity, limits.peers, limits.servers, limits.spares)
        self._path = inbox_path(address) if address.startswith("ipc://") else None
        if self._path is not None and self._path.exists():
            # Without this check, libzmq would silently replace the socket of the process that listens there.
            raise ClusterError(f"{identity.name}: {self._path} exists; another process uses the name {identity.name}")
        self._socket: Socket = context.socket(zmq.ROUTER)
        configure_inbox(self._socket, limits, identity.keys)
        self._socket.setsockopt(zmq.IPV6, "[" in address)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._socket.close()
            raise ClusterError(f"{identity.name} cannot listen on {address}: {error.strerror}") from error
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._answers: Socket | None = None
        self._descriptors: Sequence[int] = ()

    @property
    def name(self) -> str:
        return self._identity.name

    @property
    def epoch(self) -> int:
        return self._identity.epoch

    def join(self, peer: str, address: str, facts: Mapping[str, str]) -> None:
        """Connect to the master as a process that joins the run. If the master refuses, :meth:`receive` raises."""
        self.connect(peer, address, facts, self.address)
        self._answers = self._connections[peer][0].socket
        self._poller.register(self._answers, zmq.POLLIN)

    def advance(self, epoch: int, lost: Sequence[str] = ()) -> None:
        super().advance(epoch, lost)
        self._admission.advance(self._identity, lost)

    def refuse(self, peer: str, reason: str) -> None:
        self._check_thread()
        for connection in self._admission.forget(peer):
            self._refuse(connection, reason)

    def wake_on(self, descriptors: Sequence[int]) -> None:
        """Also end waits in :meth:`receive` when one of these descriptors is readable; they replace earlier ones."""
        self._check_thread()
        for descriptor in self._descriptors:
            self._poller.unregister(descriptor)
        for descriptor in descriptors:
            self._poller.register(descriptor, zmq.POLLIN)
        self._descriptors = descriptors

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next admitted message; None after ``timeout_s`` seconds or when a descriptor became readable.

        A message has priority over a descriptor, even if libzmq's thread is still transferring the message, so that the
        last message of a process is read before the death of the process is noticed. If ``timeout_s`` is 0, only
        messages that have arrived are read.
        """
        self._check_thread()
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
            ready = dict(self._poller.poll(zmq_sockets.milliseconds(remaining_s)))
            if self._answers in ready:
                self._raise_refusal()
            if not ready or not (self._socket in ready or (timeout_s and self._socket.poll(_FINAL_MESSAGE_MS))):
                return None

    def close(self) -> None:
        """Close the inbox and all connections. May be called again."""
        super().close()
        if not self._socket.closed:
            self._socket.close()
            if self._path is not None:
                # libzmq does not remove the file of the socket.
                self._path.unlink(missing_ok=True)

    def __enter__(self) -> "ZmqEndpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> list[zmq.Frame] | None:
        """Return the parts of a message, at most one more than allowed; None if no message has arrived."""
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
        process = "" if self._identity.keys is None else str(parts[0].get(USER_ID))
        received = self._admission.admit(connection, header, frames, process)
        while self._admission.refused:
            self._refuse(*self._admission.refused.pop())
        if received is not None and len(received.frames) > 1 and not isinstance(received.message, TensorsPart):
            return replace(received, frames=(memoryview(b"".join(received.frames)),))
        return received

    def _refuse(self, connection: bytes, reason: str) -> None:
        header = encode_header(self._identity.envelope(0), messages.Refused(reason))
        try:
            self._socket.send_multipart([connection, header], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.info("cannot send a refusal, because the refused process has ended: %s", error.strerror)

    def _raise_refusal(self) -> None:
        assert self._answers is not None
        _, message = decode_header(self._answers.recv_multipart()[0])
        if isinstance(message, messages.Refused):
            raise ClusterError(f"the master refused {self.name}: {printable(message.reason)}")
        raise SecurityError(f"the master answered {self.name} with {message.kind!r}, expected a refusal or no answer")
