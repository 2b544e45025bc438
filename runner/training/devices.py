"""The devices of a run: their types, their processes, and their description in the log."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner.config.devices import ON_CPU, device_texts, reason, sums_text
from runner.config.schema import AUTO, LOCAL, LocalCluster
from runner.engine.cluster.emulation import BYTES_PER_S_OF_MBIT
from runner.engine.compile.passes.lower_collectives import WHOLE
from runner.engine.compile.program import OneProcess, Program
from runner.engine.graph import GPU, Cluster, DeviceName, GpuOptions, Gpus, local_cluster
from runner.engine.graph import op as op_table
from runner.engine.graph.device import GPU_LATENCY_S, GPU_LINK_BYTES_PER_S, NCCL, NO_LIBRARY
from runner.errors import ConfigError
from runner.kernels.gpu.discovery import Found
from runner.kernels.registry import Registry
from runner.records.summary import Summary
from runner.system.files import user_cache_folder
from runner.training.experiment import Experiment

log = logging.getLogger(__name__)


def cluster_of(config: LocalCluster, program: Program) -> Cluster:
    """Return the cluster of a program, with the configured cores and links (emulated or not) for the cost model.

    Raises ConfigError if NCCL is requested for clients that overlap, that is, whose steps run concurrently.
    """
    gpus = gpus_of(config, program.workers, program.servers)
    sums = config.device_taken == GPU and config.collectives == NCCL and sums_over_workers(program)
    if sums and any(client.deferred for client in program.clients.values()):
        raise ConfigError(
            "cluster.collectives=nccl with workers that run independently: all GPUs must start sums in one order; use "
            "cluster.collectives=none"
        )
    described: dict[str, Any] = {"cores": min(config.threads_per_worker or 1, config.cores_per_worker or 1)}
    described["collectives"] = NCCL if sums and program.one_process is None else NO_LIBRARY
    if gpus is not None and program.one_process is not None:
        described |= {"latency_s": GPU_LATENCY_S, "bytes_per_s": GPU_LINK_BYTES_PER_S}
    if config.latency_ms is not None:
        described["latency_s"] = config.latency_ms / 1e3
    if config.bandwidth_mbit is not None:
        described["bytes_per_s"] = config.bandwidth_mbit * BYTES_PER_S_OF_MBIT
    return local_cluster(program.workers, program.servers, compression=config.compression, gpus=gpus, **described)


def sums_over_workers(program: Program) -> bool:
    """Return whether a program has sums over workers, which a library such as NCCL can compute between GPUs."""
    return any(node.op == WHOLE for node in program.graph)


@dataclass(frozen=True)
class DeviceReport:
    """The chosen devices as text. devices: name -> description. reason: the reason for the choice.

    versions: versions of the GPU libraries in use. missing: library -> reason why its fast kernels are not used.
    """

    devices: Mapping[str, str]
    reason: str
    versions: Mapping[str, str]
    missing: Mapping[str, str]


def log_run_devices(experiment: Experiment, found: Found, draft: Summary) -> Summary:
    """Log a run's devices and the reason for their choice; return the draft with these facts and the GPU libraries."""
    cluster = experiment.config.cluster
    report = log_devices(cluster, experiment.cluster, found)
    if cluster.device_taken == GPU and sums_over_workers(experiment.program):
        one_process = experiment.program.one_process is not None
        log.info("combine=all_reduce: %s", sums_text(experiment.config, found, one_process))
    return replace(
        draft,
        devices=dict(report.devices),
        device_reason=report.reason,
        versions={**draft.versions, **report.versions},
        kernels_missing=dict(report.missing),
    )


def log_devices(cluster: LocalCluster, placed: Cluster, found: Found) -> DeviceReport:
    """Log the devices and the reason for their choice; return the report. cluster: settings. placed: the devices."""
    texts = device_texts({device.name: device.gpu for device in placed.devices}, found)
    options = ", float32 products in TF32" if cluster.tf32 else ""
    options += ", the fastest plan of each convolution" if cluster.compare_plans else ""
    for device, what in texts.items():
        log.info("%s: %s%s", device, what, "" if what == ON_CPU else options)
    on_gpus, why = cluster.device_taken == GPU, reason(cluster, found)
    # Warn if a GPU stays idle although the user did not choose the CPU.
    idle = found.gpus and cluster.device == AUTO and not on_gpus
    log.log(logging.WARNING if idle else logging.INFO, "devices: %s", why)
    keys_of_gpus = {
        "cluster.tf32=true": cluster.tf32,
        "cluster.compare_plans=true": cluster.compare_plans,
        "cluster.server_device=gpu": cluster.server_device == GPU,
        "cluster.collectives=nccl": cluster.collectives == NCCL,
    }
    for key, is_set in keys_of_gpus.items():
        if is_set and not on_gpus:
            log.warning("%s has no effect: no GPU is used", key)
    libraries = found.libraries if on_gpus else ()
    used = {library.name: library.version for library in libraries if library.version}
    missing = {library.name: str(library) for library in libraries if library.fast and not library.version}
    for name, text in missing.items():
        log.warning("%s: %s", name, text)
    return DeviceReport(texts, why, used, missing)


def gpus_of(config: LocalCluster, workers: int, servers: int) -> Gpus | None:
    """Return the GPUs of a run; None if it computes on the CPU. config: as returned by ``fix_machine_values``."""
    if config.device_taken != GPU:
        return None
    assert config.gpus is not None, "if GPUs are used, each device has one"
    on_gpus = servers if config.server_device == GPU else 0
    use = GpuOptions(config.tf32, config.compare_plans, str(user_cache_folder() / "gpu_code"))
    return Gpus(tuple(config.gpus[:workers]), tuple(config.gpus[workers : workers + on_gpus]), use)


def in_one_process(config: LocalCluster, program: Program, strategy: str) -> Program:
    """Return the program, set to run in one process if the configuration requests this or if this is faster on GPUs.

    One process copies tensors directly between GPUs. NCCL and emulated links need a process for each worker. Clients
    that overlap (run concurrently) also need separate processes, because a single process would run them one by one.
    Raises ConfigError if ``cluster.one_process`` or the launcher contradicts the program.
    """
    overlapping = any(client.deferred for client in program.clients.values())
    if config.launcher.kind != LOCAL and (program.one_process is not None or config.device_taken == GPU):
        one = program.one_process is not None
        why = f"parallelism={strategy} has one process" if one else "GPUs of other hosts are not supported"
        remedy = "another strategy" if one else "cluster.device=cpu"
        raise ConfigError(f"cluster/launcher={config.launcher.kind}: {why}; use {remedy} or cluster/launcher=local")
    if config.one_process is False and program.one_process is not None:
        raise ConfigError(
            f"cluster.one_process=false with parallelism={strategy}, which has one process; expected null"
        )
    if config.one_process and overlapping and program.one_process is None:
        raise ConfigError(
            f"cluster.one_process=true with parallelism={strategy}: the workers run independently, and one process "
            "would run them one after the other; use cluster.one_process=null, or parallelism.virtual_time=true "
            "(parallelism=async_data)"
        )
    if program.one_process is not None or config.one_process is False:
        return program
    separate = config.emulate or (config.collectives == NCCL and sums_over_workers(program))
    faster = config.device_taken == GPU and not overlapping and not separate
    return replace(program, one_process=OneProcess()) if config.one_process or faster else program


def require_kernels(program: Program, cluster: Cluster, registry: Registry) -> None:
    """Raise ConfigError for a node whose device is not in the cluster, and for a node on a GPU without a GPU kernel.

    Such nodes usually come from a plugin. Raises ResourceError if the library that sums over the GPUs is missing.
    """
    from runner.engine.cluster.worker_setup import require_library

    require_library(cluster, registry)
    types = {
        constraint: {d.type for d in cluster.devices if DeviceName.parse(d.name).matches(DeviceName.parse(constraint))}
        for constraint in {node.device for node in program.graph}
    }
    for node in program.graph:
        if not types[node.device]:
            raise ConfigError(
                f"cluster.device=gpu: node {node.name!r} has device {node.device!r}; expected one of "
                f"{', '.join(device.name for device in cluster.devices)}. A strategy should use worker_task(k) or "
                "server_task(k), which fit every device type; or use cluster.device=cpu"
            )
        by_kernel = op_table.lookup(node.op).executed_by == "kernel"
        if by_kernel and types[node.device] == {GPU} and GPU not in registry.device_types(node.op):
            raise ConfigError(
                f"cluster.device=gpu: node {node.name!r} is on a GPU, and its op {node.op!r} has kernels for "
                f"{', '.join(sorted(registry.device_types(node.op)))} only; use cluster.device=cpu"
            )
