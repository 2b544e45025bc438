"""An endpoint between processes: an inbox and an outbox over ZeroMQ.

libzmq's own threads transfer the bytes, so that messages are sent while Python computes and arrive before they are
read.
"""

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

from runner.engine.cluster.transport.admission import Drop
from runner.engine.cluster.transport.endpoint import Frame, Identity, Limits, Received
from runner.engine.cluster.transport.messages import Message
from runner.engine.cluster.transport.zmq_inbox import Inbox
from runner.engine.cluster.transport.zmq_outbox import Outbox
from runner.engine.cluster.transport.zmq_sockets import Context


class ZmqEndpoint:
    """See :class:`~runner.engine.cluster.transport.endpoint.Endpoint`. A context manager.

    ZeroMQ sockets are not thread-safe: every method except ``name`` raises RuntimeError in another thread than
    the one that created the endpoint. A second thread, such as the heartbeat's, opens a separate outbox.
    """

    def __init__(self, context: Context, identity: Identity, address: str, limits: Limits) -> None:
        """Bind the inbox to ``address``. Raises SecurityError for an address that other users could reach."""
        self._thread = threading.get_ident()
        self._identity = identity
        self._inbox = Inbox(context, identity, address, limits)
        self._outbox = Outbox(context, identity, limits)

    @property
    def name(self) -> str:
        """The name in this endpoint's hello."""
        return self._identity.name

    @property
    def drops(self) -> Mapping[Drop, int]:
        """How many messages were dropped so far, by reason."""
        return self._inbox.admission.drops

    def connect(self, peer: str, address: str) -> None:
        """Open the connection to ``peer``, whose inbox must be bound, and send hello on it."""
        self._check_thread()
        self._outbox.connect(peer, address)

    def send(self, peer: str, message: Message, frames: Sequence[Frame] = ()) -> None:
        """Queue a message for a connected peer."""
        self._check_thread()
        self._outbox.send(peer, message, frames)

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next message; None after ``timeout_s`` seconds, or when a descriptor woke the wait."""
        self._check_thread()
        return self._inbox.receive(timeout_s)

    def wake_on(self, descriptors: Sequence[int]) -> None:
        """End a wait in :meth:`receive` also when one of these, such as a pidfd, becomes readable."""
        self._check_thread()
        self._inbox.wake_on(descriptors)

    def close(self) -> None:
        """Close the inbox and all connections. May be called again."""
        self._check_thread()
        self._outbox.close()
        self._inbox.close()

    def __enter__(self) -> "ZmqEndpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError(f"endpoint {self.name} was used by a thread that did not create it")
