"""A simulated network in one thread on a virtual clock, with which a test can try many fault schedules quickly.

The endpoints use the same encoding and admission as ZeroMQ endpoints; only the wire is simulated. All random numbers
come from the seed, so a fault schedule that finds a defect can be repeated.
"""

import itertools
import os
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runner.engine.cluster.transport.admission import Admission
from runner.engine.cluster.transport.encoding import check_frames, encode_header
from runner.engine.cluster.transport.endpoint import Endpoint, Frame, Identity, Received
from runner.engine.cluster.transport.messages import Hello, Message
from runner.errors import ClusterError


class FakeClock:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self.now = 0.0

    def advance_to(self, time: float) -> None:
        """Advance the clock to ``time`` if that is later than now."""
        self.now = max(self.now, time)

    def advance(self, seconds: float) -> None:
        """Advance the clock by ``seconds``."""
        self.now += seconds


@dataclass(frozen=True)
class Faults:
    """Faults of the wire. delay_s: (low, high), the range of random delays. drop, duplicate: probabilities."""

    delay_s: tuple[float, float] = (0.0, 0.0)
    drop: float = 0.0
    duplicate: float = 0.0


@dataclass(frozen=True)
class _InFlight:
    due: float
    order: int
    connection: bytes
    header: bytes
    frames: tuple[bytes, ...]


Channel = tuple[str, str]


class FakeNetwork:
    """The channels between endpoints. Each channel preserves the order of its messages, as a connection does.

    present: names of the endpoints that were not killed. isolated: name of a peer to and from which no message arrives.
    """

    def __init__(self, seed: int = 0, faults: Faults | None = None) -> None:
        self.clock = FakeClock()
        self.faults = faults or Faults()
        self._random = random.Random(seed)
        self._channels: dict[Channel, deque[_InFlight]] = {}
        self._order = itertools.count()
        self.isolated = ""
        self.present: set[str] = set()

    def endpoint(self, identity: Identity, peers: int, spares: int = 0) -> "FakeEndpoint":
        """Return a new endpoint that expects the given numbers of workers and spare processes."""
        return FakeEndpoint(self, identity, peers, spares=spares)

    def kill(self, name: str) -> None:
        """Remove a peer: messages that it has sent still arrive, but sending from and to the peer fails."""
        self.present.discard(name)

    def new_connection(self) -> bytes:
        """Return the identifier of a new connection."""
        return f"connection {next(self._order)}".encode()

    def post(self, channel: Channel, connection: bytes, header: bytes, frames: tuple[bytes, ...]) -> None:
        """Put zero, one or two copies of a message on the wire, each with a random delay."""
        copies = 0 if self._random.random() < self.faults.drop else 1
        if copies and self._random.random() < self.faults.duplicate:
            copies = 2
        queue = self._channels.setdefault(channel, deque())
        for _ in range(copies):
            due = self.clock.now + self._random.uniform(*self.faults.delay_s)
            queue.append(_InFlight(due, next(self._order), connection, header, frames))

    def next_for(self, destination: str) -> tuple[Channel, float] | None:
        """Return the channel with the next message for ``destination`` and the time at which it is due."""
        heads = [
            (queue[0].due, queue[0].order, channel)
            for channel, queue in self._channels.items()
            if channel[1] == destination and queue and self.isolated not in channel
        ]
        if not heads:
            return None
        due, _, channel = min(heads)
        return channel, due

    def take(self, channel: Channel) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        """Remove the first message from a channel; return its connection, header and frames."""
        message = self._channels[channel].popleft()
        return message.connection, message.header, message.frames


def check_state(admission: Admission) -> None:
    """Expect that every name has at most one connection and that every connected peer has sent hello."""
    callers = admission._callers.values()
    names = [caller.name for caller in callers]
    assert len(names) == len(set(names)), f"a peer with two connections: {sorted(names)}"
    assert all(caller.expected >= 1 for caller in callers), "a caller without hello"


class FakeEndpoint(Endpoint):
    """An :class:`~runner.engine.cluster.transport.endpoint.Endpoint`. Waiting advances the network's clock."""

    def __init__(self, network: FakeNetwork, identity: Identity, peers: int, servers: int = 0, spares: int = 0) -> None:
        self._network = network
        self._identity = identity
        self._admission = Admission(identity, peers, servers, spares)
        self._connections: dict[str, bytes] = {}
        self.refusals: list[tuple[str, str]] = []
        network.present.add(identity.name)
        self._sequences: dict[str, int] = {}

    @property
    def name(self) -> str:
        return self._identity.name

    @property
    def epoch(self) -> int:
        return self._identity.epoch

    def connect(
        self, peer: str, address: str = "", facts: Mapping[str, str] | None = None, own_address: str = ""
    ) -> None:
        """Open the connection to ``peer``. Names serve as addresses; ``address`` only appears in the error message."""
        if peer not in self._network.present:
            raise ClusterError(f"{self.name} cannot reach {peer}: no process listens on {address or peer}")
        self._connections[peer] = self._network.new_connection()
        self._sequences[peer] = 0
        who = self._identity
        hello = Hello(who.role, who.index, os.getpid(), who.token, address=own_address, facts=facts or {})
        self.send(peer, hello)

    def send(self, peer: str, message: Message, frames: Sequence[Frame] = ()) -> None:
        """Put a message for a connected peer on the wire."""
        check_frames(message, [memoryview(frame) for frame in frames])
        if not (peer in self._network.present and self.name in self._network.present):
            raise ClusterError(f"{self.name} could not send {message.kind!r} to {peer}: the peer has ended")
        header = encode_header(self._identity.envelope(self._sequences[peer]), message)
        copies = tuple(bytes(frame) for frame in frames)
        self._network.post((self.name, peer), self._connections[peer], header, copies)
        self._sequences[peer] += 1

    def closed(self) -> list[str]:
        """Return the connected peers that are no longer present."""
        return [peer for peer in self._connections if peer not in self._network.present]

    def advance(self, epoch: int, lost: Sequence[str] = ()) -> None:
        """Begin a new epoch, and forget the connections from and to lost peers."""
        self._identity = replace(self._identity, epoch=epoch)
        self._admission.advance(self._identity, lost)
        for peer in lost:
            self._connections.pop(peer, None)

    def offer(self, peer: str, message: Message) -> bool:
        """Put a message on the wire if the peer is present; return whether it is."""
        if peer not in self._network.present:
            return False
        self.send(peer, message)
        return True

    def receive(self, timeout_s: float) -> Received | None:
        """Advance the clock until a message is due, and return it; return None if no message is due by the deadline."""
        deadline = self._network.clock.now + timeout_s
        while True:
            coming = self._network.next_for(self.name)
            if coming is None or coming[1] > deadline:
                self._network.clock.advance_to(deadline)
                return None
            channel, due = coming
            self._network.clock.advance_to(due)
            received = self._admit(channel)
            check_state(self._admission)
            if received is not None:
                return received

    def refuse(self, peer: str, reason: str) -> None:
        """Forget the connections of ``peer`` and keep the reason."""
        self._admission.forget(peer)
        self.refusals.append((peer, reason))

    def close(self) -> None:
        self._network.kill(self.name)

    def _admit(self, channel: Channel) -> Received | None:
        connection, header, frames = self._network.take(channel)
        return self._admission.admit(connection, header, tuple(memoryview(frame) for frame in frames))
