"""The rendezvous between processes: bytes through arenas, references through messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.assignment import peer_of
from runner.engine.links import Links
from runner.engine.mailbox import Mailbox
from runner.engine.passes.transfers import sent_tensor
from runner.engine.transport.endpoint import Endpoint
from runner.engine.transport.messages import TensorReady
from runner.engine.transport.references import InlineTensor
from runner.engine.transport.shared_memory import ArenaReader, ArenaWriter
from runner.errors import SecurityError

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
        self._readers = readers

    def outgoing(self, sent: str, nbytes: int) -> NDArray[np.uint8]:
        """The bytes of this process's arena in which its readers look for ``sent``."""
        return _of_size(self._writer.memory(sent), nbytes, sent)

    def incoming(self, key: str, source: str, nbytes: int) -> NDArray[np.uint8]:
        """The bytes of the sender's arena, mapped read-only."""
        return _of_size(self._readers[peer_of(source)].memory(sent_tensor(key)), nbytes, key)

    def send(self, step: int, key: str, destination: str, value: Array) -> None:
        """Tell the reader where the value lies; it is copied only if it was not computed there."""
        reference = self._writer.put(sent_tensor(key), value)
        peer = peer_of(destination)
        due = 0.0 if self._links is None else self._links.due(peer, value.nbytes)
        self._endpoint.send(peer, TensorReady(self._plan, step, key, reference, due))

    def receive(self, step: int, key: str, source: str) -> Array:
        """Wait for the sender's word, check it and view the value where it lies, for this step."""
        reference = self._mailbox.tensor(self._plan, step, key).message.reference
        peer = peer_of(source)
        if isinstance(reference, InlineTensor):
            raise SecurityError(f"{key!r} came from {peer} within its message, expected a reference into its arena")
        return self._readers[peer].view(sent_tensor(key), reference)


def _of_size(memory: NDArray[np.uint8], nbytes: int, what: str) -> NDArray[np.uint8]:
    if memory.nbytes != nbytes:
        raise ValueError(f"{what!r} takes {nbytes} bytes, but its place has {memory.nbytes}")
    return memory
