"""The ends of the wires of one device: where what it sends and receives lies, and how it gets there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from runner.engine.rendezvous import LocalRendezvous, Rendezvous
from runner.kernels.contract import Operand, as_array
from runner.kernels.platform import Bytes, Platform, Work

Send = Callable[[int], None]
"""Hands a value over, for a step."""


class Receive(NamedTuple):
    """A receive in its two parts. wait: until something is there, for a step. take: look at it, or bring it over."""

    wait: Callable[[int], Any]
    take: Callable[[Any], None]


class Wires(Protocol):
    """What the executor asks of the wires of its device."""

    def outgoing(self, sent: str, nbytes: int) -> Bytes:
        """Memory in which a value is computed that is sent under a name; the same in every step."""
        ...

    def incoming(self, key: str, source: str, nbytes: int) -> Bytes:
        """Memory in which the value of a transfer lies from its receive to the end of the step."""
        ...

    def sender(self, key: str, destination: str, value: Operand) -> Send:
        """What hands the value over to one device."""
        ...

    def receiver(self, key: str, source: str, value: Operand) -> Receive:
        """What waits for a value and sees to it that it is in its memory."""
        ...


@dataclass(frozen=True)
class HostWires:
    """Of a device in the memory of the host: the rendezvous has the memory, and values are read where they lie."""

    rendezvous: Rendezvous

    def outgoing(self, sent: str, nbytes: int) -> Bytes:
        """Where its readers look."""
        return self.rendezvous.outgoing(sent, nbytes)

    def incoming(self, key: str, source: str, nbytes: int) -> Bytes:
        """The sender's memory."""
        return self.rendezvous.incoming(key, source, nbytes)

    def sender(self, key: str, destination: str, value: Operand) -> Send:
        """Tell the reader that it is there."""
        array = value.array
        return lambda step: self.rendezvous.send(step, key, destination, array)

    def receiver(self, key: str, source: str, value: Operand) -> Receive:
        """Wait for the sender's word, and see that it is what was expected."""
        spec = value.spec

        def take(found: Any) -> None:
            as_array(found, spec)

        return Receive(lambda step: self.rendezvous.receive(step, key, source), take)


@dataclass(frozen=True)
class CardWires:
    """Of a device with memory of its own: values travel through the host, but for those between ``neighbours``.

    neighbours: names of the devices of this process that have memory of the same kind. A value for one of these is
    copied from memory to memory, in the order of the devices' own work: no host waits. ``local`` is where they meet,
    None where there are none.
    """

    platform: Platform
    rendezvous: Rendezvous
    local: LocalRendezvous | None = None
    neighbours: frozenset[str] = frozenset()
    _memory: dict[str, Bytes] = field(default_factory=dict)

    def outgoing(self, sent: str, nbytes: int) -> Bytes:
        """Memory of the device, made the first time."""
        return self._own(sent, nbytes)

    def incoming(self, key: str, source: str, nbytes: int) -> Bytes:
        """Memory of the device, made the first time."""
        return self._own(f"{key} from {source}", nbytes)

    def sender(self, key: str, destination: str, value: Operand) -> Send:
        """Hand over the memory itself to a neighbour; to others a copy on the host, for which the device is waited."""
        if self.local is not None and destination in self.neighbours:
            local = self.local
            return lambda step: local.hand(step, key, _Handed(value.data, self.platform.mark()))
        read = self.platform.reader([value])

        def send(step: int) -> None:
            (array,) = read()
            self.rendezvous.send(step, key, destination, array)

        return send

    def receiver(self, key: str, source: str, value: Operand) -> Receive:
        """Bring the value over: from the neighbour's memory, or from the host's."""
        if self.local is not None and source in self.neighbours:
            local, bring = self.local, _Bringing(self.platform, value.data)
            return Receive(lambda step: local.take(step, key, source), bring)
        write, spec = self.platform.writer(value), value.spec

        def take(found: Any) -> None:
            write(as_array(found, spec))

        return Receive(lambda step: self.rendezvous.receive(step, key, source), take)

    def _own(self, name: str, nbytes: int) -> Bytes:
        if name not in self._memory:
            self._memory[name] = self.platform.allocate(nbytes)
        return self._memory[name]


@dataclass(frozen=True)
class _Handed:
    """A neighbour's memory, and the work of its device after which the value is there."""

    data: Bytes
    mark: object


@dataclass
class _Bringing:
    """Copies from where a neighbour's value lies, which is the same place in every step."""

    platform: Platform
    target: Bytes
    source: Bytes | None = None
    copy: Callable[[], int | None] = lambda: None

    def __call__(self, handed: _Handed) -> None:
        if handed.data is not self.source:
            self.source = handed.data
            call = self.platform.copier(self.target, handed.data)
            self.copy = self.platform.join([Work(call, (handed.data,), (self.target,))], once=True).call
        self.platform.follow(handed.mark)
        self.copy()
