"""The rendezvous of the devices in one process."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engine.graph import TensorSpec
from runner.engine.run import rendezvous as rendezvous_module
from runner.engine.run.rendezvous import LocalRendezvous
from runner.engine.run.wires import GpuWires, HostWires, platform_of, wires_of
from runner.errors import ClusterError, ResourceError
from runner.kernels.contract import Operand, plain
from runner.kernels.gpu.platform import GpuPlatform
from runner.kernels.platform import HostPlatform, Writer
from runner.kernels.registry import Registry
from tests.engine.cluster.transport.fake_network import FakeClock
from tests.engine.running import CPU_0, GPU_0, cluster_of
from tests.kernels.gpu.emulation import EmulatedRuntime

JOIN_S = 10.0
VALUE = np.arange(3.0)


@contextmanager
def receiving(rendezvous: LocalRendezvous, key: str) -> Iterator[Future[Any]]:
    """Receive one value in a thread; yield its future once the thread waits for the value."""
    waiting, wait = threading.Event(), rendezvous._condition.wait

    def announced(timeout: float | None = None) -> bool:
        waiting.set()
        return wait(timeout)

    rendezvous._condition.wait = announced  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(rendezvous.receive, 0, key, "peer")
        assert waiting.wait(JOIN_S)
        yield future


def test_value_is_received_once_by_step_and_key() -> None:
    rendezvous = LocalRendezvous(timeout_s=0.01)
    rendezvous.send(0, "a", "peer", VALUE)
    rendezvous.send(0, "b", "peer", VALUE + 2)
    assert sorted(rendezvous._values) == [(0, "a"), (0, "b")]
    assert [rendezvous.receive(0, key, "peer")[0] for key in ("b", "a")] == [2.0, 0.0]
    rendezvous.send(1, "a", "peer", VALUE + 1)
    assert rendezvous.receive(1, "a", "peer")[0] == 1.0
    assert not rendezvous._values
    expected = r"rendezvous: 'a' of step 1 did not arrive from /task:1 within 0\.01 s"
    with pytest.raises(ClusterError, match=expected):
        rendezvous.receive(1, "a", "/task:1")


def test_sender_may_reuse_its_memory_immediately() -> None:
    rendezvous = LocalRendezvous()
    value = VALUE.copy()
    rendezvous.send(0, "a", "peer", value)
    value[:] = 7.0
    np.testing.assert_array_equal(rendezvous.receive(0, "a", "peer"), VALUE)


def test_value_computed_in_outgoing_memory_is_not_copied() -> None:
    rendezvous = LocalRendezvous()
    memory = rendezvous.outgoing("x:0", VALUE.nbytes)
    value = memory.view(VALUE.dtype)
    value[:] = VALUE
    for destination in ("one", "two"):
        rendezvous.send(0, f"x:0->{destination}", destination, value)
        received = rendezvous.receive(0, f"x:0->{destination}", "sender")
        assert np.shares_memory(received, rendezvous.incoming(f"x:0->{destination}", "sender", VALUE.nbytes))
        assert np.shares_memory(received, memory)


def test_second_value_for_a_key_is_refused() -> None:
    rendezvous = LocalRendezvous()
    rendezvous.send(3, "a", "peer", VALUE)
    with pytest.raises(ClusterError, match="rendezvous: 'a' was sent twice in step 3"):
        rendezvous.send(3, "a", "peer", VALUE)


def test_receiver_waits_for_the_sender() -> None:
    rendezvous = LocalRendezvous()
    with receiving(rendezvous, "a") as received:
        rendezvous.send(0, "other", "peer", VALUE)
        rendezvous.send(0, "a", "peer", VALUE)
        np.testing.assert_array_equal(received.result(JOIN_S), VALUE)


def test_time_while_the_process_is_suspended_does_not_count_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    rendezvous = LocalRendezvous(timeout_s=60.0)
    clock = FakeClock()
    waits: list[float] = []

    def wait(timeout: float) -> bool:
        """Simulate a process that is suspended for an hour and then receives the value after half a minute."""
        waits.append(timeout)
        clock.advance(timeout if len(waits) > 1 else 3600.0)
        if clock.now >= 3630.0:
            rendezvous._values[0, "a"] = VALUE
        return False

    monkeypatch.setattr(rendezvous_module.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(rendezvous._condition, "wait", wait)
    assert rendezvous.receive(0, "a", "peer") is VALUE
    with pytest.raises(ClusterError, match="did not arrive from peer within 60 s"):
        rendezvous.receive(0, "b", "peer")
    assert clock.now == 3690.0


def test_abort_fails_waiting_and_later_receivers() -> None:
    rendezvous = LocalRendezvous()
    expected = "^rendezvous: 'a' did not arrive from .*: another device failed: no disk$"
    with receiving(rendezvous, "a") as received:
        rendezvous.abort(ValueError("no disk"))
        rendezvous.abort(ValueError("a consequence"))
        with pytest.raises(ClusterError, match=expected):
            received.result(JOIN_S)
    with pytest.raises(ClusterError, match=expected):
        rendezvous.receive(0, "a", "peer")


def test_reset_discards_the_failed_step_and_returns_its_failure() -> None:
    rendezvous = LocalRendezvous(timeout_s=0.01)
    failure = ValueError("no disk")
    for key in ("a", "b"):
        rendezvous.send(0, key, "peer", VALUE)
    rendezvous.abort(failure)
    np.testing.assert_array_equal(rendezvous.receive(0, "b", "peer"), VALUE)
    assert rendezvous.reset() is failure
    assert rendezvous.reset() is None
    assert not rendezvous._values
    rendezvous.send(0, "a", "peer", VALUE)
    np.testing.assert_array_equal(rendezvous.receive(0, "a", "peer"), VALUE)


SPEC = TensorSpec((3, 5), "float32")
GPUS = frozenset({"GPU 0", "GPU 1"})


@pytest.fixture
def runtime(tmp_path: Path) -> EmulatedRuntime:
    return EmulatedRuntime(tmp_path)


class End:
    """A device on the emulated GPU, with ``GpuWires``. alone: whether the process has no rendezvous between GPUs."""

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


def test_gpus_copy_in_stream_order_without_waits_on_the_host(runtime: EmulatedRuntime) -> None:
    rendezvous = LocalRendezvous(timeout_s=0.01)
    first, second = End(runtime, rendezvous), End(runtime, rendezvous)
    out, into = first.outgoing("x"), second.incoming("x->GPU 1", "GPU 0")
    send = first.wires.sender("x->GPU 1", "GPU 1", out)
    wait, take, _ = second.wires.receiver("x->GPU 1", "GPU 0", into)
    for step in range(3):
        first.write(out, value(step))
        send(step)
        take(wait(step))
        # The reader synchronizes only the receiving stream, so this stream must have waited for the sending stream.
        (found,) = second.platform.reader([into])()
        np.testing.assert_array_equal(found, value(step))
    assert not rendezvous._values


def test_tensor_for_several_gpus_is_stored_once(runtime: EmulatedRuntime) -> None:
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
    wait, take, _ = host.receiver("x->host", "GPU 0", place)
    take(wait(7))
    np.testing.assert_array_equal(place.array, value(1))

    back = Operand(SPEC, plain(SPEC), host.outgoing("y", SPEC.nbytes))
    back.array[:] = value(2)
    host.sender("y->GPU 0", "GPU 0", back)(7)
    into = gpu.incoming("y->GPU 0", "host")
    wait, take, _ = gpu.wires.receiver("y->GPU 0", "host", into)
    take(wait(7))
    back.array[:] = -1
    (found,) = gpu.platform.reader([into])()
    np.testing.assert_array_equal(found, value(2))


def test_value_of_wrong_dtype_from_host_is_refused(runtime: EmulatedRuntime) -> None:
    gpu = End(runtime, LocalRendezvous())
    _, take, _ = gpu.wires.receiver("y->GPU 0", "host", gpu.incoming("y->GPU 0", "host"))
    with pytest.raises(ValueError, match=r"got float64\[3, 5\], expected float32\[3, 5\]"):
        take(np.zeros((3, 5)))


def test_device_type_without_kernels_is_refused(registry: Registry) -> None:
    (gpu,) = cluster_of(GPU_0).devices
    with pytest.raises(ResourceError, match=f"device '{GPU_0}': this process has no device of type 'gpu', only cpu"):
        platform_of(gpu, registry)


def test_device_type_selects_platform_and_wires(registry: Registry, tmp_path: Path) -> None:
    extended = registry.copy()
    extended.platforms["gpu"] = lambda gpu: GpuPlatform(EmulatedRuntime(tmp_path), gpu)
    rendezvous = LocalRendezvous(1.0)
    for name, platform, wires in ((CPU_0, HostPlatform, HostWires), (GPU_0, GpuPlatform, GpuWires)):
        found = platform_of(cluster_of(name).devices[0], extended)
        assert type(found) is platform
        assert type(wires_of(found, rendezvous)) is wires
