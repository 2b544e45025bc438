"""Wires: the memory of the tensors that a device sends and receives, and the functions that transfer them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runner.engine.compile.passes.transfers import sent_tensor
from runner.engine.graph import Device
from runner.engine.run.rendezvous import LocalRendezvous, Rendezvous
from runner.errors import ResourceError
from runner.kernels.contract import NativeCall, Operand, as_array
from runner.kernels.memory import Bytes, address_of
from runner.kernels.platform import HostPlatform, Platform, Work
from runner.kernels.registry import Registry

Send = Callable[[int], None]  # a function that takes the number of a step and sends a value


class Receive(NamedTuple):
    """A receive in two calls. wait: waits for the value of a step and returns it. take: checks or copies the value.

    native: machine-code calls instead of wait and take, or None.
    """

    wait: Callable[[int], Any]
    take: Callable[[Any], None]
    native: Sequence[NativeCall] | None = None


@dataclass(frozen=True)
class HostWires:
    """Wires of a device in host memory: the rendezvous owns the memory, and values are read without copying."""

    rendezvous: Rendezvous

    def outgoing(self, sent: str, nbytes: int) -> Bytes:
        """Return the memory, the same in every step, in which the value named ``sent`` is computed."""
        return self.rendezvous.outgoing(sent, nbytes)

    def incoming(self, key: str, source: str, nbytes: int) -> Bytes:
        """Return the memory of a received value; the value stays there until the end of the step."""
        return self.rendezvous.incoming(key, source, nbytes)

    def sender(self, key: str, destination: str, value: Operand) -> Send | Sequence[NativeCall]:
        """Return a function that sends the value to the device ``destination``, or calls in machine code.

        Calls are returned if the rendezvous has them and the value is computed in the memory of the rendezvous.
        """
        ring = self.rendezvous.ring(key)
        if ring is not None and value.address == address_of(self.outgoing(sent_tensor(key), value.layout.nbytes)):
            return ring
        array = value.array
        return lambda step: self.rendezvous.send(step, key, destination, array)

    def receiver(self, key: str, source: str, value: Operand) -> Receive:
        """Return a receive that waits for a value from the device ``source`` and checks its shape and dtype."""
        spec = value.spec

        def take(found: Any) -> None:
            as_array(found, spec)

        native = self.rendezvous.arrival(key, source)
        return Receive(lambda step: self.rendezvous.receive(step, key, source), take, native)


@dataclass(frozen=True)
class GpuWires:
    """Wires of a GPU: values travel through host memory, except between ``neighbours``.

    neighbours: names of the GPUs of this process. A value for a neighbour is copied from GPU memory to GPU memory,
    ordered with the work of both GPUs, so that the host does not wait. local: the neighbours' rendezvous, or None.
    """

    platform: Platform
    rendezvous: Rendezvous
    local: LocalRendezvous | None = None
    neighbours: frozenset[str] = frozenset()
    _memory: dict[str, Bytes] = field(default_factory=dict)

    def outgoing(self, sent: str, nbytes: int) -> Bytes:
        return self._gpu_memory(sent, nbytes)

    def incoming(self, key: str, source: str, nbytes: int) -> Bytes:
        return self._gpu_memory(f"{key} from {source}", nbytes)

    def sender(self, key: str, destination: str, value: Operand) -> Send:
        """Return a function that passes GPU memory to a neighbour or, after all GPU work, sends a host copy."""
        if self.local is not None and destination in self.neighbours:
            local = self.local
            return lambda step: local.put(step, key, (value.data, self.platform.mark()))
        read = self.platform.reader([value])

        def send(step: int) -> None:
            (array,) = read()
            self.rendezvous.send(step, key, destination, array)

        return send

    def receiver(self, key: str, source: str, value: Operand) -> Receive:
        """Return a receive that copies the value from the neighbour's memory or from host memory."""
        if self.local is not None and source in self.neighbours:
            local, copy_in = self.local, _PeerCopy(self.platform, value.data)
            return Receive(lambda step: local.take(step, key, source), copy_in)
        write, spec = self.platform.writer(value), value.spec

        def take(found: Any) -> None:
            write(as_array(found, spec))

        return Receive(lambda step: self.rendezvous.receive(step, key, source), take)

    def _gpu_memory(self, name: str, nbytes: int) -> Bytes:
        if name not in self._memory:
            self._memory[name] = self.platform.allocate(nbytes)
        return self._memory[name]


Wires = HostWires | GpuWires


@dataclass
class _PeerCopy:
    """A function that copies a neighbour's value into this GPU's memory. A new source needs a new copy call.

    A received value includes a mark: the point in the neighbour's work after which the value is complete.
    """

    platform: Platform
    target: Bytes
    source: Bytes | None = None
    copy: Callable[[], int | None] = lambda: None

    def __call__(self, sent: tuple[Bytes, object]) -> None:
        data, mark = sent
        if data is not self.source:
            self.source = data
            call = self.platform.copier(self.target, data)
            self.copy = self.platform.join([Work(call, (data,), (self.target,))], once=True).call
        self.platform.follow(mark)
        self.copy()


def platform_of(device: Device, registry: Registry) -> Platform:
    """Return the platform of a device; raises ResourceError if this process has no devices of its type."""
    if device.type == "cpu":
        return HostPlatform(registry.join)
    if device.type not in registry.platforms:
        known = ", ".join(["cpu", *sorted(registry.platforms)])
        raise ResourceError(f"device {device.name!r}: this process has no device of type {device.type!r}, only {known}")
    return registry.platforms[device.type](device.gpu or 0)


def wires_of(
    platform: Platform,
    rendezvous: Rendezvous,
    local: LocalRendezvous | None = None,
    neighbours: frozenset[str] = frozenset(),
) -> Wires:
    """Return the wires of a device. local, neighbours: see :class:`GpuWires`."""
    if not platform.is_asynchronous:
        return HostWires(rendezvous)
    return GpuWires(platform, rendezvous, local, neighbours)
