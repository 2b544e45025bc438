"""The choice of what sums gradients for ``combine=all_reduce`` on GPUs: NCCL, or the workers themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.config.schema import Config, LocalCluster, worker_processes
from runner.engine.graph.device import GPU, NCCL, NO_LIBRARY
from runner.errors import ConfigError
from runner.kernels.gpu.discovery import Found

_LIBRARY = "NCCL"


def take_collectives(config: Config, found: Found) -> LocalCluster:
    """Return the cluster of a configuration whose GPUs are assigned, with ``cluster.collectives`` filled in.

    If the key is null, NCCL is used if its distribution is installed; if the key is nccl, CuPy finds the library later.
    Raises ConfigError for nccl in a configuration that cannot use it.
    """
    cluster: LocalCluster = config.cluster
    if cluster.device_taken != GPU:
        return cluster
    why = hindrance(config)
    if cluster.collectives == NCCL and why:
        raise ConfigError(
            f"cluster.collectives={NCCL}: expected two workers or more, each with a GPU and in a process of its own, "
            f"but {why}; use cluster.collectives=null"
        )
    if cluster.collectives is None and config.parallelism.sums_by_all_reduce:
        return replace(cluster, collectives=NO_LIBRARY if why or _absence(found) else NCCL)
    return cluster


def hindrance(config: Config) -> str:
    """Return why a configuration cannot use NCCL, whatever is installed; "" if it can."""
    cluster: LocalCluster = config.cluster
    gpus: list[Any] = cluster.gpus or []
    workers = worker_processes(config)
    if workers < 2:
        return f"there is {workers} worker"
    if len(set(gpus)) < len(gpus):
        return f"some share a GPU: cluster.gpus={gpus}"
    if cluster.one_process:
        return "cluster.one_process=true keeps all workers in one"
    if cluster.compression != "none":
        return f"cluster.compression={cluster.compression} shortens tensors, and NCCL sends whole ones"
    if cluster.emulate:
        return "cluster.emulate=true emulates links, and NCCL uses its own"
    return ""


def sums_text(config: Config, found: Found, in_one_process: bool) -> str:
    """Describe what sums gradients, and why NCCL is not used."""
    if config.cluster.collectives == NCCL:
        return "NCCL sums, from GPU to GPU"
    way = "from GPU to GPU" if in_one_process else "through the host's memory"
    why = hindrance(config) or _absence(found) or "cluster.collectives=none"
    return f"parts are sent {way} and every worker sums them: {why}"


def _absence(found: Found) -> str:
    """Return a message if NCCL is not installed as a distribution, else ""."""
    library = next((each for each in found.libraries if each.name == _LIBRARY), None)
    if library is not None and library.version:
        return ""
    return "NCCL is not installed with CuPy; cluster.collectives=nccl uses one of the system"
