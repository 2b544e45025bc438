"""What the engine knows of its transport: peers by name, messages, payload frames, deadlines.

Two implementations keep the same promises: :mod:`~runner.engine.transport.zmq_endpoint` between processes and
:mod:`~runner.engine.transport.in_process` on a virtual clock for tests.

* Each peer has one inbox and one connection to every peer it sends to. A connection begins with a hello that
  proves the run's token, and keeps the order of what is sent on it.
* What arrives is delivered once or not at all, and a message lost in between is noticed with the next one
  (:class:`~runner.errors.ClusterError`).
* Messages of another run or epoch are dropped.
* An endpoint belongs to one thread: the one that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runner.engine.transport.header import Envelope
from runner.engine.transport.messages import Message
from runner.engine.transport.names import peer_name

Frame = bytes | memoryview


@dataclass(frozen=True)
class Identity:
    """Who an endpoint is, in which life (``epoch``) of which run, and the secret all its processes share."""

    run: str
    epoch: int
    role: str
    index: int
    token: str = field(repr=False)

    @property
    def name(self) -> str:
        """The peer's name, such as ``worker-3``."""
        return peer_name(self.role, self.index)

    def envelope(self, sequence: int) -> Envelope:
        """Return the envelope of the message that is number ``sequence`` on its connection."""
        return Envelope(self.run, self.epoch, self.name, sequence)


@dataclass(frozen=True)
class Limits:
    """What the maker of an endpoint declares about its traffic; all of it is enforced.

    peers: indices of a role run from 0 to ``peers`` - 1; at most three connections come from each.
    servers: the same for the role of parameter servers, of which there may be none.
    queued_messages: how many messages one peer may send before the receiver reads again. It must cover
        a whole step: libzmq reads nothing from a connection whose queue is full, not even ZMTP's heartbeats,
        and so one that stays full for longer than their time-out may be cut.
    frame_bytes: the largest payload frame that is no document.
    connect_timeout_s, send_timeout_s: after these a peer counts as unreachable.
    """

    peers: int
    servers: int = 0
    queued_messages: int = 4096
    frame_bytes: int = 64 * 2**20
    connect_timeout_s: float = 10.0
    send_timeout_s: float = 10.0


@dataclass(frozen=True)
class Received:
    """One admitted message: from whom, what, and its payload frames, which are as the header says."""

    source: str
    message: Message
    frames: tuple[memoryview, ...] = ()


class Endpoint(Protocol):
    """One peer's side of all its connections."""

    @property
    def name(self) -> str:
        """The name this endpoint says hello with."""

    def connect(self, peer: str, address: str) -> None:
        """Open the connection to ``peer`` and say hello on it.

        Raises ClusterError when nobody answers at ``address`` within the connect time-out.
        """

    def send(self, peer: str, message: Message, frames: Sequence[Frame] = ()) -> None:
        """Queue a message for a connected peer. The frames are copied: the caller may reuse their memory.

        Raises ClusterError when the peer is gone or takes nothing for the send time-out, ValueError when the
        message or its frames break the schema or the declared limits.
        """

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next message, or None when none came within ``timeout_s`` seconds; 0 only looks.

        Raises ClusterError when messages were lost, SecurityError when a peer of this run broke the protocol.
        """

    def close(self) -> None:
        """Close the inbox and all connections within a bounded time. May be called again."""
