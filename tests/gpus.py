"""Descriptions of machines with GPUs, and kernels for the emulated GPU."""

from pathlib import Path

import pytest

from runner.engine.run import kernel_table
from runner.kernels.gpu.discovery import Found, Library
from runner.kernels.gpu.driver import DriverFacts, GpuFacts
from tests.gpu.gpus import registry_of
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.fake_nccl import with_nccl

GIB = 1 << 30
GPU_BYTES = 80 * GIB
NO_DRIVER = Found(
    DriverFacts(fault="there is no NVIDIA driver: no libcuda"), (), "there is no NVIDIA driver: no libcuda"
)


def gpu(
    number: int = 0, capability: int = 90, memory_bytes: int = GPU_BYTES, free_bytes: int | None = None
) -> GpuFacts:
    """Return the description of a usable GPU."""
    return GpuFacts(number, "Big GPU", capability, memory_bytes, free_bytes)


def machine(*gpus: GpuFacts, obstacle: str = "") -> Found:
    """Return the result of discovery on a machine with these GPUs.

    obstacle: the reason why no GPU can be used, or "".
    """
    return Found(DriverFacts("580.1", 13000, gpus), (Library("CuPy", "14.2.0 (cupy-cuda13x)", ""),), obstacle)


@pytest.fixture
def gpu_kernels(compiled_sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels of the emulated GPU wherever this process would load the kernels of its GPUs."""
    registry = registry_of(EmulatedRuntime(compiled_sources))
    monkeypatch.setattr(kernel_table, "load_gpu_kernels", lambda use, home: registry)


@pytest.fixture
def nccl_kernels(compiled_sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the kernels as :func:`gpu_kernels` does, but by those of two emulated GPUs with a fake NCCL."""
    runtime = EmulatedRuntime(compiled_sources, gpus=2)
    with_nccl(runtime)
    registry = registry_of(runtime)
    monkeypatch.setattr(kernel_table, "load_gpu_kernels", lambda use, home: registry)
