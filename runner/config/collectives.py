"""What sums gradients of ``combine=all_reduce`` where workers have GPUs: NCCL between these, or the workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.config.schema import Config, LocalCluster, worker_processes
from runner.engine.graph.device import GPU, NCCL, NO_LIBRARY
from runner.errors import ConfigError
from runner.kernels.gpu.discovery import Found

_LIBRARY = "NCCL"


def take_collectives(config: Config, found: Found) -> LocalCluster:
    """The cluster of a configuration, whose GPUs are dealt out, with what it left open about sums.

    Where nothing is asked for, the distributions that are installed say whether NCCL is there; who asks for it is
    believed until CuPy looks. Raises ConfigError for NCCL that is asked for where it cannot be.
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
    """Why NCCL cannot sum in a configuration, whatever is installed; "" where it can."""
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
        return f"cluster.compression={cluster.compression} shortens what travels, and NCCL takes all of it"
    if cluster.emulate:
        return "cluster.emulate=true waits for links, and NCCL has its own"
    return ""


def sums_text(config: Config, found: Found, in_one_process: bool) -> str:
    """What sums, and why not NCCL where it does not."""
    if config.cluster.collectives == NCCL:
        return "NCCL sums, from GPU to GPU"
    way = "from GPU to GPU" if in_one_process else "through the host's memory"
    why = hindrance(config) or _absence(found) or "cluster.collectives=none asks for it"
    return f"parts travel {way} and every worker sums them: {why}"


def _absence(found: Found) -> str:
    """What there is to say where NCCL is not installed as a distribution."""
    library = next((each for each in found.libraries if each.name == _LIBRARY), None)
    if library is not None and library.version:
        return ""
    return "NCCL is not installed beside CuPy; cluster.collectives=nccl takes one of the system"
