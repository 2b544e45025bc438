"""The device on which runner is measured: a GPU or, to try the benchmark without one, CPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from benchmarks.protocol import peak_memory_mib
from runner.engine.compile.program import TRAIN, Program
from runner.engine.graph import Cluster, GpuOptions, Gpus, local_cluster
from runner.engine.run.kernel_table import kernels_for
from runner.engine.run.local_session import LocalSession
from runner.kernels.registry import Registry
from runner.system.files import user_cache_folder

DISTRIBUTIONS = ("numpy", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
"""Distributions whose versions are reported if they are installed."""

STAGES = 2
"""Number of buffers on the GPU for each fed value."""


@dataclass(frozen=True)
class Engine:
    """One device and its kernels, with which sessions are opened."""

    cluster: Cluster
    registry: Registry
    versions: Mapping[str, str] = field(default_factory=dict)

    def session(self, program: Program) -> LocalSession:
        """Return a session in this process; the caller closes it."""
        return LocalSession(program, self.cluster, self.registry)

    def memory_mib(self, session: LocalSession) -> float:
        """Return the GPU memory of a training step; on CPUs, the peak memory of the process.

        The planned memory equals the allocated memory. Temporary memory for loading initial values is excluded.
        """
        (device,) = self.cluster.devices
        if device.gpu is None:
            return peak_memory_mib()
        (plan,) = session.plans(TRAIN).values()
        variables = sum(slot.layout.nbytes for slot in plan.variables.values())
        fed = sum(feed.spec.nbytes for feed in plan.feeds)
        return (variables + plan.arena_bytes + STAGES * fed) / 2**20


def engine_on(device: str, precision: str, *, compare_plans: bool = False) -> Engine:
    """Return the engine on "cuda" or "cpu", for a precision of :data:`~benchmarks.gpu.networks.PRECISIONS`.

    compare_plans: see :class:`~runner.engine.graph.device.GpuOptions`. Raises ResourceError without a GPU.
    """
    use = GpuOptions(precision == "tf32", compare_plans, str(user_cache_folder() / "gpu_code"))
    gpus = Gpus((0,), use=use) if device == "cuda" else None
    cluster = local_cluster(1, gpus=gpus)
    return Engine(cluster, kernels_for(cluster.devices), _versions())


def _versions() -> Mapping[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
