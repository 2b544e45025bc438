"""The rendezvous between processes: values are in arenas, and messages carry references to them.

A receiver that shares memory with the sender reads the value in the arena. Any other receiver is sent the bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runner.engine.cluster.arrivals import send_parts
from runner.engine.cluster.assignment import peer_of
from runner.engine.cluster.emulation import Links
from runner.engine.cluster.mailbox import Mailbox
from runner.engine.cluster.transport.endpoint import Endpoint
from runner.engine.cluster.transport.messages import TensorReady
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaWriter
from runner.engine.compile.passes.transfers import sent_tensor
from runner.kernels.contract import Array


@dataclass(frozen=True)
class WireRendezvous:
    """The :class:`~runner.engine.run.rendezvous.Rendezvous` of one plan.

    writer: writes this process's arena. readers: peer -> reader of the peer's arena, or of a copy if the peer does not
    share memory with this process. links: emulated links, or None.
    """

    plan: str
    endpoint: Endpoint
    mailbox: Mailbox
    writer: ArenaWriter
    readers: Mapping[str, ArenaReader]
    links: Links | None = None

    def outgoing(self, sent: str, nbytes: int) -> NDArray[np.uint8]:
        """Return the memory of the value named ``sent`` in this process's arena."""
        return _of_size(self.writer.memory(sent), nbytes, sent)

    def incoming(self, key: str, source: str, nbytes: int) -> NDArray[np.uint8]:
        """Return the memory of the transfer ``key`` in the sender's arena, mapped read-only."""
        return _of_size(self.readers[peer_of(source)].memory(sent_tensor(key)), nbytes, key)

    def send(self, step: int, key: str, destination: str, value: Array) -> None:
        """Copy the value to the arena unless it was computed there; then send a reference or the bytes."""
        reference = self.writer.put(sent_tensor(key), value)
        peer = peer_of(destination)
        due = 0.0 if self.links is None else self.links.due(peer, value.nbytes)
        ready = TensorReady(self.plan, step, key, reference, due)
        if self.readers[peer].spec.is_copy:
            send_parts(self.endpoint, peer, ready, self.writer.memory(sent_tensor(key)).data)
        else:
            self.endpoint.send(peer, ready)

    def receive(self, step: int, key: str, source: str) -> Array:
        """Wait for the reference, check it, and return a view of the value, valid until the step ends."""
        reference = self.mailbox.tensor(self.plan, step, key)
        return self.readers[peer_of(source)].view(sent_tensor(key), reference)


def _of_size(memory: NDArray[np.uint8], nbytes: int, what: str) -> NDArray[np.uint8]:
    if memory.nbytes != nbytes:
        raise ValueError(f"{what!r}: memory of {memory.nbytes} bytes, expected {nbytes}")
    return memory
