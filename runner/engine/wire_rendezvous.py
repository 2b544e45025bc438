"""The rendezvous between processes: bytes through arenas, references through messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from runner.engine.assignment import peer_of
from runner.engine.links import Links
from runner.engine.mailbox import Mailbox
from runner.engine.transport.codec import unpack_one
from runner.engine.transport.endpoint import Endpoint
from runner.engine.transport.messages import TensorReady
from runner.engine.transport.shared_memory import ArenaReader, ArenaWriter

Array = NDArray[Any]


class WireRendezvous:
    """See :class:`~runner.engine.rendezvous.Rendezvous`; for one plan, with the arenas of all who take part."""

    def __init__(
        self,
        plan: str,
        endpoint: Endpoint,
        mailbox: Mailbox,
        writer: ArenaWriter,
        readers: Mapping[str, ArenaReader],
        links: Links | None = None,
    ) -> None:
        """``readers``: the arenas of the others, by peer. links: emulated ones; None where the wires are real."""
        self._plan = plan
        self._endpoint = endpoint
        self._mailbox = mailbox
        self._writer = writer
        self._links = links
        self._arenas = {peer: {reader.spec.name: reader} for peer, reader in readers.items()}

    def send(self, step: int, key: str, destination: str, value: Array) -> None:
        """Copy the value to shared memory and tell its reader where."""
        reference = self._writer.put(key, value)
        peer = peer_of(destination)
        due = 0.0 if self._links is None else self._links.due(peer, value.nbytes)
        self._endpoint.send(peer, TensorReady(self._plan, step, key, reference, due))

    def receive(self, step: int, key: str, source: str) -> Array:
        """Wait for the sender's word and view the value where it lies, until the step ends."""
        arrived = self._mailbox.tensor(self._plan, step, key)
        return unpack_one(key, arrived.message.reference, arrived.frames, self._arenas[peer_of(source)])
