"""The transport interface, through which named peers exchange messages and documents within time limits.

:mod:`~runner.engine.cluster.transport.zmq_endpoint` implements the interface. The guarantees are:

* A peer has at most one inbox, and one connection to every peer to which it sends. Over TCP, workers may have more
  connections, called lanes, for large tensors. A connection begins with a hello that contains the run's token, and
  preserves the order of messages.
* A message is delivered at most once. A lost message is detected when the sender's next message arrives, and raises
  :class:`~runner.errors.ClusterError`.
* Messages of another run or an earlier epoch are dropped. A recovery begins a new epoch (:meth:`Endpoint.advance`); the
  connections between the surviving processes stay open.
* An endpoint may be used only by the thread that created it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runner.engine.cluster.transport.encoding import Envelope
from runner.engine.cluster.transport.messages import Message, peer_name

Frame = bytes | memoryview


@dataclass(frozen=True)
class Keys:
    """CURVE keys as Z85 text. secret: key of this process. public: process name -> public key, for all processes."""

    secret: str = field(repr=False)
    public: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class Identity:
    """The run, role and index of an endpoint, and the run's token. epoch: number of this start of the run.

    keys: the keys for connections over TCP; None if all processes are on one host and connect over ``ipc://``.
    """

    run: str
    epoch: int
    role: str
    index: int
    token: str = field(repr=False)
    keys: Keys | None = None

    @property
    def name(self) -> str:
        """The peer's name, such as ``worker-3``."""
        return peer_name(self.role, self.index)

    def envelope(self, sequence: int) -> Envelope:
        """Return the envelope of a message. sequence: number of the message on its connection, from 0."""
        return Envelope(self.run, self.epoch, self.name, sequence)


@dataclass(frozen=True)
class Limits:
    """The limits of an endpoint's traffic.

    peers: number of workers. servers, spares: numbers of parameter servers and spare processes.
    queued_messages: number of messages that one peer may send before the receiver reads. If a step sends at most this
    number, a send waits only for a peer that has ended. connect_timeout_s, send_timeout_s: seconds after which a peer
    counts as unreachable. lanes: connections between two workers over TCP. If there are several, the first carries no
    large tensors.
    """

    peers: int
    servers: int = 0
    queued_messages: int = 4096
    connect_timeout_s: float = 10.0
    send_timeout_s: float = 1.0
    lanes: int = 1
    spares: int = 0


SEND_TIMEOUT_S = 0.05  # ``Limits.send_timeout_s`` on one host, where the connection to an ended process closes at once


@dataclass(frozen=True)
class Received:
    """One admitted message with its sender and its frames: one document, bytes of tensors, or none."""

    source: str
    message: Message
    frames: tuple[memoryview, ...] = ()


class Endpoint(Protocol):
    """One peer's end of all its connections."""

    @property
    def name(self) -> str:
        """The name in this endpoint's hello."""

    @property
    def epoch(self) -> int:
        """The epoch in which messages are sent."""

    def connect(self, peer: str, address: str) -> None:
        """Connect to ``peer`` and send hello; raises ClusterError if no process answers within the connect time-out."""

    def send(self, peer: str, message: Message, frames: Sequence[Frame] = ()) -> None:
        """Queue a message for a connected peer. The frames are copied, unless the message is a ``TensorsPart``.

        The bytes of a ``TensorsPart`` must not change until the receiver has finished the step. Raises ClusterError if
        the peer is gone or accepts no message in time, ValueError if message or frames violate the schema.
        """

    def offer(self, peer: str, message: Message) -> bool:
        """Queue a message without frames if there is room; return whether it was queued."""

    def closed(self) -> list[str]:
        """Return the peers to which no message can be sent now: a connection has ended, or its queue is full."""

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next message, or None if none arrived within ``timeout_s`` seconds; 0 does not wait.

        Raises ClusterError if messages were lost, SecurityError if a peer of this run violated the protocol.
        """

    def advance(self, epoch: int, lost: Sequence[str] = ()) -> None:
        """Begin a new epoch: send messages in this epoch, and drop messages of earlier epochs except heartbeats.

        lost: processes that are replaced; all connections from and to them are closed.
        """

    def refuse(self, peer: str, reason: str) -> None:
        """Send ``peer`` the reason why it may not join, and forget its connection; its hello must have arrived."""

    def close(self) -> None:
        """Close the inbox and all connections within a bounded time. May be called again."""


CLOSED_S = 1.0  # seconds after which a closed connection is an error, unless the end of its process was noticed


class ClosedConnections:
    """A detector of closed connections, on which messages are lost without an error unless a later message is sent.

    A network that was interrupted, or a host that was suspended, closes connections of processes that do not end.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._since: dict[str, float] = {}

    def lost(self, now: float) -> list[str]:
        """Return the peers whose connections were closed in all calls of the last ``CLOSED_S`` seconds."""
        self._since = {peer: self._since.get(peer, now) for peer in self._endpoint.closed()}
        return [peer for peer, since in self._since.items() if now - since >= CLOSED_S]
