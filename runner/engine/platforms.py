"""The platform of each device of a cluster, and the kind of wires that it has."""

from __future__ import annotations

from runner.engine.device import Device
from runner.engine.rendezvous import LocalRendezvous, Rendezvous
from runner.engine.wires import CardWires, HostWires, Wires
from runner.errors import ResourceError
from runner.kernels.host import HostPlatform
from runner.kernels.platform import Platform
from runner.kernels.registry import Registry


def platform_of(device: Device, registry: Registry) -> Platform:
    """What a device allocates with and computes through; raises ResourceError for a type that has no kernels here."""
    if device.type == "cpu":
        return HostPlatform(registry.join)
    if device.type not in registry.platforms:
        known = ", ".join(["cpu", *sorted(registry.platforms)])
        raise ResourceError(
            f"device {device.name!r}: this process has no devices of type {device.type!r}, only {known}"
        )
    return registry.platforms[device.type](device.card or 0)


def wires_of(
    platform: Platform,
    rendezvous: Rendezvous,
    local: LocalRendezvous | None = None,
    neighbours: frozenset[str] = frozenset(),
) -> Wires:
    """The ends of the wires of a device. local, neighbours: see :class:`~runner.engine.wires.CardWires`."""
    if not platform.is_asynchronous:
        return HostWires(rendezvous)
    return CardWires(platform, rendezvous, local, neighbours)
