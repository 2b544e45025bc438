"""The libraries of fast CPU kernels: each is loaded once, and a missing one is reported with the reason."""

from dataclasses import dataclass
from importlib import import_module

from runner.kernels.registry import Registry

_LIBRARIES = {"onednn": "runner.kernels.cpu.onednn.loading", "llvm": "runner.kernels.cpu.machine_code.loading"}
_PACKAGES = ("cffi", "llvmlite")


@dataclass(frozen=True)
class NativeLibrary:
    """A library of fast kernels. version: the reported version and the file. missing: why it is not used, or ""."""

    name: str
    version: str
    missing: str = ""


def register(registry: Registry) -> tuple[NativeLibrary, ...]:
    """Add the kernels of every library that can be loaded; return the state of each library."""
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
