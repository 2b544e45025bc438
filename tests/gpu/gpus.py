"""The GPU under test, a real one or the emulated one, and all that a session on it is opened with."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runner.engine.graph.device import Cluster, GpuOptions, Gpus, local_cluster
from runner.engine.run.kernel_table import load_kernels, require_gpu_kernels
from runner.kernels.gpu.loading import register_gpus
from runner.kernels.gpu.runtime import DeviceMemory, Runtime
from runner.kernels.registry import Registry


@dataclass(frozen=True)
class Gpu:
    """What is tested. opened: the runtime, for tf32 or not. emulated: there is no GPU, its sources run on the host."""

    opened: Callable[[bool], Runtime]
    emulated: bool = False

    def registry(self, *, tf32: bool = False) -> Registry:
        """The kernels of the host and of the GPU, every op of which has one."""
        return registry_of(self.opened(tf32))

    def counted(self) -> tuple[Counted, Registry]:
        """A runtime that counts what is asked of it, and the kernels made for it."""
        runtime = Counted(self.opened(False))
        return runtime, registry_of(runtime)


def registry_of(runtime: Runtime) -> Registry:
    """The kernels of the host and, made for a runtime, of the GPU; raises KernelError for an op that has none."""
    registry = load_kernels().copy()
    register_gpus(registry, runtime)
    require_gpu_kernels(registry)
    return registry


def on_gpu(workers: int, servers: int = 0, *, tf32: bool = False, **more: Any) -> Cluster:
    """Logical devices that all are on the first GPU."""
    return local_cluster(workers, servers, gpus=Gpus((0,) * workers, (0,) * servers, GpuOptions(tf32)), **more)


@dataclass
class Counted:
    """A runtime that counts calls by name, and bytes of the GPU that were taken and given back.

    See :class:`~runner.kernels.gpu.runtime.Runtime`.
    """

    runtime: Any
    calls: Counter[str] = field(default_factory=Counter)
    allocated: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.runtime, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **more: Any) -> Any:
            with self._lock:
                self.calls[name] += 1
            return found(*arguments, **more)

        return call

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Memory of the GPU, counted."""
        with self._lock:
            self.calls["allocate"] += 1
            self.allocated += nbytes
        memory: DeviceMemory = self.runtime.allocate(nbytes)
        return memory

    @property
    def waits(self) -> int:
        """How often the host waited for the GPU."""
        return self.calls["synchronize"] + self.calls["wait_on_host"]
