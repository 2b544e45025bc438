"""The devices of a run, as its configuration wants them: of which type they are, and in how many processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner.config.collectives import sums_text
from runner.config.devices import ON_CPU, device_texts, reason
from runner.config.schema import AUTO, LocalCluster
from runner.engine.cluster.communicator_setup import require_library
from runner.engine.cluster.links import BYTES_PER_S_OF_MBIT
from runner.engine.compile.passes.lower_collectives import WHOLE
from runner.engine.compile.program import OneProcess, Program
from runner.engine.graph import op as op_table
from runner.engine.graph.device import (
    GPU,
    GPU_LATENCY_S,
    GPU_LINK_BYTES_PER_S,
    NCCL,
    NO_LIBRARY,
    Cluster,
    DeviceName,
    GpuOptions,
    Gpus,
    local_cluster,
)
from runner.errors import ConfigError
from runner.kernels.gpu.discovery import Found
from runner.kernels.registry import Registry
from runner.records.summary import Summary
from runner.system.cache_folder import gpu_code_folder
from runner.training.experiment import Experiment

log = logging.getLogger(__name__)


def cluster_of(config: LocalCluster, program: Program) -> Cluster:
    """The devices of a program; the cost model takes cores and links as described, emulated or not."""
    gpus = gpus_of(config, program.workers, program.servers)
    described: dict[str, Any] = {"cores": min(config.threads_per_worker or 1, config.cores_per_worker or 1)}
    described["collectives"] = _collectives_of(config, program)
    if gpus is not None and program.one_process is not None:
        described |= {"latency_s": GPU_LATENCY_S, "bytes_per_s": GPU_LINK_BYTES_PER_S}
    if config.latency_ms is not None:
        described["latency_s"] = config.latency_ms / 1e3
    if config.bandwidth_mbit is not None:
        described["bytes_per_s"] = config.bandwidth_mbit * BYTES_PER_S_OF_MBIT
    return local_cluster(program.workers, program.servers, compression=config.compression, gpus=gpus, **described)


def _collectives_of(config: LocalCluster, program: Program) -> str:
    """What sums over the GPUs of a program; "none" where nothing is to be summed so.

    Raises ConfigError for clients that overlap: each GPU would begin their sums in an order of its own.
    """
    if config.device_taken != GPU or config.collectives != NCCL or not sums_over_workers(program):
        return NO_LIBRARY
    if any(client.deferred for client in program.clients.values()):
        raise ConfigError(
            "cluster.collectives=nccl with clients that overlap: all GPUs have to begin their sums in one order; use "
            "cluster.collectives=none"
        )
    return NCCL if program.one_process is None else NO_LIBRARY


def sums_over_workers(program: Program) -> bool:
    """Whether a program has sums that a library between GPUs can make."""
    return any(node.op == WHOLE for node in program.graph)


@dataclass(frozen=True)
class Told:
    """What computes and why, in words. devices: by name. versions, missing: of the libraries of a GPU that was taken:
    versions of those that are there, and why fast kernels are not."""

    devices: Mapping[str, str]
    reason: str
    versions: Mapping[str, str]
    missing: Mapping[str, str]


def tell_devices(experiment: Experiment, found: Found, draft: Summary) -> Summary:
    """Say in the log what a run computes on and why; return the draft of its summary with the same.

    Where that is a GPU, with the versions of its libraries too, and with those of fast kernels that are missing.
    """
    cluster = experiment.config.cluster
    told = say_devices(cluster, experiment.cluster, found)
    if cluster.device_taken == GPU and sums_over_workers(experiment.program):
        own = experiment.program.one_process is not None
        log.info("combine=all_reduce: %s", sums_text(experiment.config, found, own))
    return replace(
        draft,
        devices=dict(told.devices),
        device_reason=told.reason,
        versions={**draft.versions, **told.versions},
        kernels_missing=dict(told.missing),
    )


def say_devices(cluster: LocalCluster, placed: Cluster, found: Found) -> Told:
    """Say in the log what the devices of a cluster are and why; return the same. placed: the devices themselves."""
    texts = device_texts({device.name: device.gpu for device in placed.devices}, found)
    why = reason(cluster, found)
    for device, what in texts.items():
        log.info("%s: %s%s", device, what, "" if what == ON_CPU else _use_text(cluster))
    # A GPU that lies idle is no small matter.
    idle = found.gpus and cluster.device == AUTO and cluster.device_taken != GPU
    log.log(logging.WARNING if idle else logging.INFO, "devices: %s", why)
    for key in _unheeded(cluster):
        log.warning("%s changes nothing: no GPU was taken", key)
    libraries = found.libraries if cluster.device_taken == GPU else ()
    used = {library.name: library.version for library in libraries if library.version}
    missing = {library.name: str(library) for library in libraries if library.fast and not library.version}
    for name, text in missing.items():
        log.warning("%s: %s", name, text)
    return Told(texts, why, used, missing)


def _use_text(cluster: LocalCluster) -> str:
    """What is other than usual on GPUs."""
    tf32 = ", float32 products in TF32" if cluster.tf32 else ""
    return tf32 + (", the fastest plan of each convolution" if cluster.compare_plans else "")


def _unheeded(cluster: LocalCluster) -> Iterator[str]:
    """What is asked of GPUs where none was taken."""
    if cluster.device_taken != GPU:
        if cluster.tf32:
            yield "cluster.tf32=true"
        if cluster.compare_plans:
            yield "cluster.compare_plans=true"
        if cluster.server_device == GPU:
            yield "cluster.server_device=gpu"
        if cluster.collectives == NCCL:
            yield "cluster.collectives=nccl"


def gpus_of(config: LocalCluster, workers: int, servers: int) -> Gpus | None:
    """The GPUs of a run with its machine values filled in; None where it computes on the CPU."""
    if config.device_taken != GPU:
        return None
    assert config.gpus is not None, "where a GPU is taken, each device has one"
    on_gpus = servers if config.server_device == GPU else 0
    use = GpuOptions(config.tf32, config.compare_plans, str(gpu_code_folder()))
    return Gpus(tuple(config.gpus[:workers]), tuple(config.gpus[workers : workers + on_gpus]), use)


def in_one_process(config: LocalCluster, program: Program, strategy: str) -> Program:
    """The program with the wish to be run by one process where the configuration has it, or GPUs make it worth while.

    There, copies go from GPU to GPU; NCCL wants a process for each. Clients that are launched beside each other would
    run one by one, so they have processes of their own. Raises ConfigError where that contradicts
    ``cluster.one_process``.
    """
    overlapping = any(client.deferred for client in program.clients.values())
    if config.one_process is False and program.one_process is not None:
        raise ConfigError(
            f"cluster.one_process=false with parallelism={strategy}: it has one process; use cluster.one_process=null"
        )
    if config.one_process and overlapping and program.one_process is None:
        raise ConfigError(
            f"cluster.one_process=true with parallelism={strategy}: its clients overlap, and one process would run "
            "them one by one; use cluster.one_process=null, or parallelism.virtual_time=true (parallelism=async_data)"
        )
    if program.one_process is not None or config.one_process is False:
        return program
    apart = config.emulate or (config.collectives == NCCL and sums_over_workers(program))
    worth_while = config.device_taken == GPU and not overlapping and not apart
    return replace(program, one_process=OneProcess()) if config.one_process or worth_while else program


def require_kernels(program: Program, cluster: Cluster, registry: Registry) -> None:
    """Raise ConfigError for a node that no device fits, or that would be on a GPU and has no kernel for one.

    Either is a plugin's, as a rule. Raises ResourceError where the library that is to sum over the GPUs is missing.
    """
    require_library(cluster, registry)
    types = {
        constraint: {d.type for d in cluster.devices if DeviceName.parse(d.name).matches(DeviceName.parse(constraint))}
        for constraint in {node.device for node in program.graph}
    }
    for node in program.graph:
        if not types[node.device]:
            raise ConfigError(
                f"cluster.device=gpu: node {node.name!r} is to be on {node.device!r}, and the cluster has "
                f"{', '.join(device.name for device in cluster.devices)}: a strategy names worker_task(k) or "
                "server_task(k), of whichever type that is; cluster.device=cpu has CPUs alone"
            )
        by_kernel = op_table.lookup(node.op).executed_by == "kernel"
        if by_kernel and types[node.device] == {GPU} and GPU not in registry.device_types(node.op):
            raise ConfigError(
                f"cluster.device=gpu: node {node.name!r} is on a GPU, and its op {node.op!r} has kernels for "
                f"{', '.join(sorted(registry.device_types(node.op)))} only; use cluster.device=cpu"
            )
