"""What devices compute through, and the wires that they have for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.engine.platforms import platform_of, wires_of
from runner.engine.rendezvous import LocalRendezvous
from runner.engine.wires import CardWires, HostWires
from runner.errors import ResourceError
from runner.kernels.gpu.platform import CardPlatform
from runner.kernels.host import HostPlatform
from runner.kernels.registry import Registry
from tests.engine.running import CPU_0, GPU_0, cluster_of
from tests.kernels.gpu.emulation import EmulatedRuntime


def test_a_device_of_a_type_without_kernels_is_refused(registry: Registry) -> None:
    (card,) = cluster_of(GPU_0).devices
    with pytest.raises(ResourceError, match=f"device '{GPU_0}': this process has no devices of type 'gpu', only cpu"):
        platform_of(card, registry)


def test_platforms_and_wires_go_by_the_type_of_the_device(registry: Registry, tmp_path: Path) -> None:
    extended = registry.copy()
    extended.platforms["gpu"] = lambda card: CardPlatform(EmulatedRuntime(tmp_path), card)
    rendezvous = LocalRendezvous(1.0)
    for name, platform, wires in ((CPU_0, HostPlatform, HostWires), (GPU_0, CardPlatform, CardWires)):
        found = platform_of(cluster_of(name).devices[0], extended)
        assert type(found) is platform
        assert type(wires_of(found, rendezvous)) is wires
