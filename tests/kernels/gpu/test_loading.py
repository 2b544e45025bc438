"""Registration of GPU kernels: every op has one, and the registry of the host does not change."""

from runner.engine.graph.device import Device
from runner.engine.graph.op import OPS
from runner.engine.run.wires import platform_of
from runner.kernels.gpu.loading import register_gpus
from runner.kernels.gpu.platform import GpuPlatform
from runner.kernels.registry import Registry
from tests.kernels.gpu.emulation import EmulatedRuntime


def test_every_op_has_a_kernel_of_our_own(runtime: EmulatedRuntime) -> None:
    registry = Registry()
    register_gpus(registry, runtime)
    ops = [name for name, definition in OPS.items() if definition.executed_by == "kernel"]
    registry.require(ops, "gpu")
    assert [op for op in ops if "cuda" not in {kernel.library for kernel in registry.of(op, "gpu")}] == []


def test_gpu_kernels_added_to_a_copy_do_not_change_the_registry(runtime: EmulatedRuntime, registry: Registry) -> None:
    extended = registry.copy()
    register_gpus(extended, runtime)
    assert extended.device_types("conv2d") == {"cpu", "gpu"}
    assert registry.device_types("conv2d") == {"cpu"}
    assert "gpu" not in registry.platforms


def test_a_device_on_a_gpu_has_its_platform(runtime: EmulatedRuntime, registry: Registry) -> None:
    extended = registry.copy()
    register_gpus(extended, runtime)
    device = Device("/job:worker/task:0/device:gpu:0", gpu=0)
    assert isinstance(platform_of(device, extended), GpuPlatform)
