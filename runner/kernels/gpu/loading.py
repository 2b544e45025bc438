"""Registration of all GPU kernels and of the platform of GPU devices."""

from functools import partial
from importlib import import_module

from runner.kernels.gpu.collective import LIBRARY as COLLECTIVES
from runner.kernels.gpu.platform import GpuPlatform
from runner.kernels.gpu.runtime import Runtime
from runner.kernels.registry import Registry

FAMILIES = (
    "collective cudnn.convolution elementwise linear normalization recurrent reduction rows shape structural windows"
)
MODULES = tuple(import_module(f"runner.kernels.gpu.{name}") for name in FAMILIES.split())
"""Modules of kernels; each has ``kernels(runtime)``, which returns the kernels of the available libraries."""


def register_gpus(registry: Registry, runtime: Runtime) -> None:
    """Add the kernels of device type "gpu" for ``runtime``, and the platform of this device type."""
    for module in MODULES:
        for kernel in module.kernels(runtime):
            registry.add(kernel)
    registry.platforms["gpu"] = partial(GpuPlatform, runtime)
    if (library := runtime.library(COLLECTIVES)) is not None:
        registry.communicators[COLLECTIVES] = library
