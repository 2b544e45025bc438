"""Which fast kernels this machine can have: libraries are tried once, and what is missing is said with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from runner.kernels.registry import Registry

_LIBRARIES = {"onednn": "runner.kernels.cpu.onednn.loading", "llvm": "runner.kernels.cpu.machine_code.loading"}
_PACKAGES = ("cffi", "llvmlite")


@dataclass(frozen=True)
class NativeLibrary:
    """A library of fast kernels. version: as it says itself, with its file. missing: why it is not used, or ""."""

    name: str
    version: str
    missing: str = ""


def register(registry: Registry) -> tuple[NativeLibrary, ...]:
    """Add the kernels of every library that can be loaded; tell what became of each."""
    return tuple(NativeLibrary(name, *_loaded(module, registry)) for name, module in _LIBRARIES.items())


def _loaded(module: str, registry: Registry) -> tuple[str, str]:
    try:
        loading = import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        return "", f"the Python package {error.name} is not installed"
    version, missing = loading.register(registry)
    return version, missing
