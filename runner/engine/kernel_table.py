"""The kernels an engine process may use: the one place where kernel modules are loaded."""

from __future__ import annotations

from functools import cache

import runner.engine.ops
import runner.kernels.reference  # noqa: F401 - registers the kernels
from runner.engine.op import OPS
from runner.kernels.cpu.loading import NativeLibrary, register
from runner.kernels.registry import REGISTRY, Registry


def load_kernels() -> Registry:
    """Return the registry, holding a kernel on "cpu" for every op that kernels execute.

    Raises KernelError naming ops without a kernel and kernels without an op.
    """
    native_libraries()
    REGISTRY.require((name for name, definition in OPS.items() if definition.executed_by == "kernel"), "cpu")
    return REGISTRY


@cache
def native_libraries() -> tuple[NativeLibrary, ...]:
    """The libraries of fast kernels: those in use, and those that this machine lacks with the reason."""
    return register(REGISTRY)
