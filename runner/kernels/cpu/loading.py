"""Which fast kernels this machine can have: libraries are tried once, and what is missing is said with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from runner.kernels.cpu.machine_code import loading as machine_code
from runner.kernels.cpu.onednn import loading as onednn
from runner.kernels.registry import Registry


@dataclass(frozen=True)
class NativeLibrary:
    """A library of fast kernels. version: as it says itself, with its file. missing: why it is not used, or ""."""

    name: str
    version: str
    missing: str = ""


def register(registry: Registry) -> tuple[NativeLibrary, ...]:
    """Add the kernels of every library that can be loaded; tell what became of each."""
    return tuple(
        NativeLibrary(name, *load(registry))
        for name, load in (("onednn", onednn.register), ("llvm", machine_code.register))
    )
