"""Wires between GPUs, and between a GPU and the host."""

from pathlib import Path

import numpy as np
import pytest

from runner.engine.graph.tensor import TensorSpec
from runner.engine.run.rendezvous import LocalRendezvous
from runner.engine.run.wires import GpuWires, HostWires, platform_of, wires_of
from runner.errors import ResourceError
from runner.kernels.contract import Operand, plain
from runner.kernels.gpu.platform import GpuPlatform
from runner.kernels.platform import HostPlatform, Writer
from runner.kernels.registry import Registry
from tests.engine.running import CPU_0, GPU_0, cluster_of
from tests.kernels.gpu.emulation import EmulatedRuntime

SPEC = TensorSpec((3, 5), "float32")
GPUS = frozenset({"GPU 0", "GPU 1"})


@pytest.fixture
def runtime(tmp_path: Path) -> EmulatedRuntime:
    return EmulatedRuntime(tmp_path)


class End:
    """A device on the emulated GPU with its wires."""

    def __init__(self, runtime: EmulatedRuntime, rendezvous: LocalRendezvous, *, alone: bool = False) -> None:
        self.platform = GpuPlatform(runtime, 0)
        self.wires = GpuWires(self.platform, rendezvous, None if alone else rendezvous, GPUS)
        self._writers: list[Writer] = []

    def outgoing(self, sent: str) -> Operand:
        return Operand(SPEC, plain(SPEC), self.wires.outgoing(sent, SPEC.nbytes))

    def incoming(self, key: str, source: str) -> Operand:
        return Operand(SPEC, plain(SPEC), self.wires.incoming(key, source, SPEC.nbytes))

    def write(self, place: Operand, value: np.ndarray) -> None:
        self._writers.append(self.platform.writer(place))
        self._writers[-1](value)


def value(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SPEC.shape, np.float32)


def test_neighbours_copy_in_device_order_without_host_waits(runtime: EmulatedRuntime) -> None:
    rendezvous = LocalRendezvous(timeout_s=0.01)
    first, second = End(runtime, rendezvous), End(runtime, rendezvous)
    out, into = first.outgoing("x"), second.incoming("x->GPU 1", "GPU 0")
    send = first.wires.sender("x->GPU 1", "GPU 1", out)
    wait, take = second.wires.receiver("x->GPU 1", "GPU 0", into)
    for step in range(3):
        first.write(out, value(step))
        send(step)
        take(wait(step))
        # Reading synchronizes only the receiver, which must itself have waited for the sender.
        (found,) = second.platform.reader([into])()
        np.testing.assert_array_equal(found, value(step))
    assert rendezvous.pending == []


def test_tensor_for_several_neighbours_is_stored_once(runtime: EmulatedRuntime) -> None:
    end = End(runtime, LocalRendezvous())
    assert end.wires.outgoing("x", 60) is end.wires.outgoing("x", 60)
    assert end.wires.incoming("x->GPU 1", "GPU 0", 60) is end.wires.incoming("x->GPU 1", "GPU 0", 60)


@pytest.mark.parametrize("alone", [False, True])
def test_gpu_and_host_exchange_values(runtime: EmulatedRuntime, alone: bool) -> None:
    rendezvous = LocalRendezvous(timeout_s=0.01)
    gpu, host = End(runtime, rendezvous, alone=alone), HostWires(rendezvous)
    out = gpu.outgoing("x")
    place = Operand(SPEC, plain(SPEC), host.incoming("x->host", "GPU 0", SPEC.nbytes))
    gpu.write(out, value(1))
    gpu.wires.sender("x->host", "host", out)(7)
    wait, take = host.receiver("x->host", "GPU 0", place)
    take(wait(7))
    np.testing.assert_array_equal(place.array, value(1))

    back = Operand(SPEC, plain(SPEC), host.outgoing("y", SPEC.nbytes))
    back.array[:] = value(2)
    host.sender("y->GPU 0", "GPU 0", back)(7)
    into = gpu.incoming("y->GPU 0", "host")
    wait, take = gpu.wires.receiver("y->GPU 0", "host", into)
    take(wait(7))
    back.array[:] = -1
    (found,) = gpu.platform.reader([into])()
    np.testing.assert_array_equal(found, value(2))


def test_value_of_wrong_dtype_from_host_is_refused(runtime: EmulatedRuntime) -> None:
    gpu = End(runtime, LocalRendezvous())
    _, take = gpu.wires.receiver("y->GPU 0", "host", gpu.incoming("y->GPU 0", "host"))
    with pytest.raises(ValueError, match=r"came float64\[3, 5\], expected float32\[3, 5\]"):
        take(np.zeros((3, 5)))


def test_device_type_without_kernels_is_refused(registry: Registry) -> None:
    (gpu,) = cluster_of(GPU_0).devices
    with pytest.raises(ResourceError, match=f"device '{GPU_0}': this process has no devices of type 'gpu', only cpu"):
        platform_of(gpu, registry)


def test_device_type_selects_platform_and_wires(registry: Registry, tmp_path: Path) -> None:
    extended = registry.copy()
    extended.platforms["gpu"] = lambda gpu: GpuPlatform(EmulatedRuntime(tmp_path), gpu)
    rendezvous = LocalRendezvous(1.0)
    for name, platform, wires in ((CPU_0, HostPlatform, HostWires), (GPU_0, GpuPlatform, GpuWires)):
        found = platform_of(cluster_of(name).devices[0], extended)
        assert type(found) is platform
        assert type(wires_of(found, rendezvous)) is wires
