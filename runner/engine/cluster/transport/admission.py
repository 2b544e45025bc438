"""Admission: the decision which connections and messages an inbox accepts, independent of sockets.

On an unknown connection, only a hello is accepted. Other messages are dropped and counted. They raise no error, because
any process that can reach the socket could then end the run. A peer that has presented the run's token must follow the
protocol: a violation is a defect or an attack and ends the run with an error that names the peer.
"""

import hmac
import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.encoding import Envelope, check_frames, decode_header
from runner.engine.cluster.transport.endpoint import Frame, Identity, Received
from runner.errors import ClusterError, SecurityError
from runner.system.schema import Violation
from runner.system.text import printable

log = logging.getLogger(__name__)

CALLERS = {
    messages.MASTER_ROLE: (*messages.STARTED_ROLES, *messages.HEARTBEAT_ROLES),
    **dict.fromkeys(messages.DEVICE_ROLES, (messages.MASTER_ROLE, *messages.DEVICE_ROLES)),
    messages.SPARE_ROLE: (messages.MASTER_ROLE,),
}
"""Role of an inbox -> the roles that may connect to it."""

Frames = Sequence[memoryview]


class Drop(StrEnum):
    """The reason why a message was not delivered."""

    MALFORMED = "malformed header on an unknown connection"
    STALE = "message of another run or epoch"
    NO_HELLO = "first message of a connection is not a hello"
    BAD_TOKEN = "hello with a wrong token"
    DUPLICATE = "repeated sequence number"
    TWICE = "second connection of one process"


@dataclass
class _Caller:
    """The peer of one connection. lane: see ``Hello``. expected: sequence number of the peer's next message."""

    name: str
    role: str
    lane: int
    expected: int


class Admission:
    """The state of all connections into one inbox. A pure state machine without a clock or a socket.

    ``connection`` is the transport's identifier of a connection; it is never used as a peer name.
    """

    def __init__(self, identity: Identity, peers: int, servers: int = 0, spares: int = 0) -> None:
        """``peers``, ``servers``, ``spares``: numbers of workers, parameter servers and spare processes."""
        self.drops: Counter[Drop] = Counter()
        self.refused: list[tuple[bytes, str]] = []  # (connection, reason) of each dropped first message
        self._last_drop = ""
        self._identity = identity
        counts = {messages.SERVER_ROLE: servers, messages.SPARE_ROLE: spares}
        self._counts = counts | {messages.heartbeat_role(role): count for role, count in counts.items()}
        self._peers = peers
        self._callers: dict[bytes, _Caller] = {}
        self._joined_after: dict[str, int] = {}  # replaced process -> epoch in which its replacement was started
        self._oldest = identity.epoch

    def admit(self, connection: bytes, header: Frame, frames: Frames, process: str = "") -> Received | None:
        """Return the message to deliver, or None if it was dropped and counted.

        process: name of the process to which the connection's CURVE key belongs; "" if the run has no keys. Raises
        SecurityError if a peer of this run violated the protocol, ClusterError if messages were lost.
        """
        caller = self._callers.get(connection)
        if caller is not None:
            return self._admit_peer(caller, header, frames)
        received = self._admit_unknown(connection, header, frames, process)
        if received is None:
            self.refused.append((connection, self._last_drop))
        return received

    def _admit_unknown(self, connection: bytes, header: Frame, frames: Frames, process: str) -> Received | None:
        try:
            envelope, message = decode_header(header)
        except SecurityError as error:
            return self._drop(Drop.MALFORMED, str(error))
        # A spare process joins a run in which a later epoch can begin while it starts.
        latest = math.inf if self._identity.role == messages.SPARE_ROLE else self._identity.epoch
        if envelope.run != self._identity.run or not self._oldest <= envelope.epoch <= latest:
            return self._drop(Drop.STALE, f"{envelope.run}, epoch {envelope.epoch}")
        if not isinstance(message, messages.Hello):
            return self._drop(Drop.NO_HELLO, f"{message.kind} from {envelope.src}")
        if not hmac.compare_digest(message.token.encode(), self._identity.token.encode()):
            return self._drop(Drop.BAD_TOKEN, f"from {envelope.src}")
        name = self._identify(envelope, message, frames, process)
        if envelope.epoch < self._joined_after.get(messages.process_of(name), self._oldest):
            return self._drop(Drop.STALE, f"{name} of epoch {envelope.epoch}, which was replaced")
        if any((caller.name, caller.lane) == (name, message.lane) for caller in self._callers.values()):
            return self._drop(Drop.TWICE, f"{name} has already joined the run")
        self._callers[connection] = _Caller(name, message.role, message.lane, expected=1)
        return Received(name, replace(message, token=""))

    def advance(self, identity: Identity, lost: Sequence[str] = ()) -> None:
        """Begin the epoch of ``identity``: drop messages of earlier epochs, and forget the ``lost`` processes.

        A hello of an earlier epoch is admitted unless it is from a replaced process, because the others continue.
        """
        self._identity = identity
        for process in lost:
            self.forget(process)
            self._joined_after[process] = identity.epoch

    def forget(self, name: str) -> list[bytes]:
        """Forget the connections of a process, so that its replacement may join; return these connections."""
        found = [connection for connection, caller in self._callers.items() if messages.process_of(caller.name) == name]
        for connection in found:
            del self._callers[connection]
        return found

    def _identify(self, envelope: Envelope, hello: messages.Hello, frames: Frames, process: str) -> str:
        """Return the name of a caller with the right token; raises SecurityError if the caller breaks the protocol."""
        allowed = CALLERS[self._identity.role]
        indices = self._counts.get(hello.role, self._peers)
        # Check before building the name: a peer name has room for only six digits.
        if hello.role not in allowed or hello.index >= indices:
            raise SecurityError(
                f"hello of {hello.role}-{hello.index} to {self._identity.name}: "
                f"expected a role of {', '.join(allowed)} and an index below {indices}"
            )
        name = messages.peer_name(hello.role, hello.index)
        source = printable(envelope.src)
        if envelope.src != name or envelope.seq != 0 or frames:
            raise SecurityError(
                f"hello of {name}: sent as {source}, number {envelope.seq}, with {len(frames)} frames; "
                f"expected {name}, number 0, no frames"
            )
        if self._identity.keys is not None and messages.process_of(name) != process:
            raise SecurityError(
                f"hello of {name} with the key of {process or 'no process of this run'}, expected its own key"
            )
        return name

    def _admit_peer(self, caller: _Caller, header: Frame, frames: Frames) -> Received | None:
        try:
            envelope, message = decode_header(header)
        except SecurityError as error:
            raise SecurityError(f"{caller.name}: {error}") from error
        if envelope.src != caller.name:
            raise SecurityError(
                f"{caller.name} sent a message with the sender {printable(envelope.src)}, expected {caller.name}"
            )
        if envelope.seq < caller.expected:
            return self._drop(Drop.DUPLICATE, f"{message.kind} {envelope.seq} from {caller.name}")
        if envelope.seq > caller.expected:
            raise ClusterError(
                f"{envelope.seq - caller.expected} messages from {caller.name} to {self._identity.name} "
                f"were lost: received number {envelope.seq} ({message.kind}), expected {caller.expected}"
            )
        # A heartbeat keeps the epoch in which its process joined. A later epoch is accepted, because a peer may learn
        # of a recovery earlier than this process.
        is_outdated = envelope.epoch < self._identity.epoch and caller.role not in messages.HEARTBEAT_ROLES
        if is_outdated or envelope.run != self._identity.run:
            caller.expected += 1
            return self._drop(Drop.STALE, f"{message.kind} of {envelope.run}, epoch {envelope.epoch}")
        if isinstance(message, messages.Hello) or caller.role not in message.senders:
            raise SecurityError(
                f"{caller.name} sent {message.kind!r}, which a {caller.role} may not send to {self._identity.name}"
            )
        try:
            check_frames(message, frames)
        except Violation as violation:
            raise SecurityError(f"{caller.name}: {violation}") from violation
        caller.expected += 1
        return Received(caller.name, message, tuple(frames))

    def _drop(self, reason: Drop, detail: str) -> Received | None:
        """Count a dropped message; return None, because no message is delivered."""
        self.drops[reason] += 1
        self._last_drop = f"{reason.value} ({printable(detail)})"
        level = logging.WARNING if self.drops[reason] == 1 else logging.DEBUG
        log.log(level, "%s dropped a message: %s", self._identity.name, self._last_drop)
        return None
