"""The GPU under test, real or emulated, and the kernel registries and clusters for sessions on it."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runner.engine.graph import Cluster, GpuOptions, Gpus, local_cluster
from runner.engine.run.kernel_table import load_kernels, require_gpu_kernels
from runner.kernels.gpu.loading import register_gpus
from runner.kernels.gpu.runtime import DeviceMemory, Runtime
from runner.kernels.registry import Registry


@dataclass(frozen=True)
class Gpu:
    """A GPU to test. opened: whether tf32 is allowed -> runtime. emulated: whether its kernels run on the host."""

    opened: Callable[[bool], Runtime]
    emulated: bool = False

    def registry(self, *, tf32: bool = False) -> Registry:
        """Return a registry of the kernels of the host and of the GPU."""
        return registry_of(self.opened(tf32))

    def counted(self) -> "tuple[Counted, Registry]":
        """Return a runtime that counts calls, and a registry whose GPU kernels use this runtime."""
        runtime = Counted(self.opened(False))
        return runtime, registry_of(runtime)


def registry_of(runtime: Runtime) -> Registry:
    """Return a registry of the kernels of host and GPU; raises KernelError for an op without a GPU kernel."""
    registry = load_kernels().copy()
    register_gpus(registry, runtime)
    require_gpu_kernels(registry)
    return registry


def on_gpu(workers: int, servers: int = 0, *, tf32: bool = False, **more: Any) -> Cluster:
    """Return a cluster whose workers and servers are logical devices of the first GPU."""
    return local_cluster(workers, servers, gpus=Gpus((0,) * workers, (0,) * servers, GpuOptions(tf32)), **more)


@dataclass
class Counted:
    """A wrapper of a :class:`~runner.kernels.gpu.runtime.Runtime`.

    It counts the calls of each method and the bytes that are allocated.
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
        """Allocate GPU memory and count its bytes."""
        with self._lock:
            self.calls["allocate"] += 1
            self.allocated += nbytes
        memory: DeviceMemory = self.runtime.allocate(nbytes)
        return memory

    @property
    def waits(self) -> int:
        """Number of times that the host waited for the GPU."""
        return self.calls["synchronize"] + self.calls["wait_on_host"]
