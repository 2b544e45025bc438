"""The devices of a run, GPUs or the CPU, and the library that sums gradients between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.config.schema import AUTO, Config, LocalCluster, server_processes, worker_processes
from runner.engine.graph.device import CPU, GPU, NCCL, NO_LIBRARY
from runner.errors import ConfigError, ResourceError
from runner.kernels.gpu.discovery import BFLOAT16_CAPABILITY, NO_GPUS, Found, discover
from runner.kernels.gpu.driver import GpuFacts
from runner.system.machine import BFLOAT16_FLAGS, bfloat16_flags


def assign_collectives(config: Config, found: Found) -> LocalCluster:
    """Return the cluster of a configuration whose GPUs are assigned, with ``cluster.collectives`` filled in.

    A null key is filled in only if the strategy sums by all-reduce: with nccl if the configuration can use NCCL and
    NCCL is installed with CuPy, otherwise with none. Raises ConfigError if the key is nccl but NCCL cannot be used.
    """
    cluster: LocalCluster = config.cluster
    if cluster.device_taken != GPU:
        return cluster
    why = nccl_obstacle(config)
    if cluster.collectives == NCCL and why:
        raise ConfigError(
            f"cluster.collectives={NCCL}: expected two workers or more, each with a separate GPU and process, "
            f"but {why}; use cluster.collectives=null"
        )
    if cluster.collectives is None and config.parallelism.sums_by_all_reduce:
        return replace(cluster, collectives=NO_LIBRARY if why or _nccl_missing(found) else NCCL)
    return cluster


def nccl_obstacle(config: Config) -> str:
    """Return the reason why a configuration cannot use NCCL, even if NCCL is installed; "" if it can."""
    cluster: LocalCluster = config.cluster
    gpus: list[Any] = cluster.gpus or []
    workers = worker_processes(config)
    if workers < 2:
        return f"there is {workers} worker"
    if len(set(gpus)) < len(gpus):
        return f"workers share a GPU: cluster.gpus={gpus}"
    if cluster.one_process:
        return "cluster.one_process=true keeps all workers in one process"
    if cluster.compression != "none":
        return f"cluster.compression={cluster.compression} compresses tensors, and NCCL sends them uncompressed"
    if cluster.emulate:
        return "cluster.emulate=true emulates links, and NCCL uses the real ones"
    return ""


def sums_text(config: Config, found: Found, in_one_process: bool) -> str:
    """Describe the method that sums gradients and, if NCCL is not used, the reason."""
    if config.cluster.collectives == NCCL:
        return "NCCL sums, from GPU to GPU"
    way = "from GPU to GPU" if in_one_process else "through host memory"
    why = nccl_obstacle(config) or _nccl_missing(found) or "cluster.collectives=none"
    return f"every worker receives all parts {way} and sums them: {why}"


def _nccl_missing(found: Found) -> str:
    """Return a message if no Python distribution of NCCL is installed; "" if one is installed."""
    if any(each.name == "NCCL" and each.version for each in found.libraries):
        return ""
    return "NCCL is not installed with CuPy; cluster.collectives=nccl uses the system's NCCL"


@dataclass(frozen=True)
class GpuShare:
    """One job's share of the GPUs of a machine, which are divided among jobs as the cores are.

    jobs: number of jobs that run at the same time. place: the job's number among them, from 0; used modulo ``jobs``.
    """

    place: int = 0
    jobs: int = 1

    def of(self, gpus: Sequence[GpuFacts]) -> Sequence[GpuFacts]:
        """Return the job's GPUs: consecutive GPUs, divided as evenly as possible.

        If there are more jobs than GPUs, every job has one GPU, and jobs share GPUs.
        """
        place = self.place % self.jobs
        each, more = divmod(len(gpus), self.jobs)
        if not each:
            return gpus[place % len(gpus) :][:1] if gpus else gpus
        first = place * each + min(place, more)
        return gpus[first : first + each + (place < more)]

    def text(self, gpus: Sequence[GpuFacts]) -> str:
        own = ", ".join(str(gpu.number) for gpu in self.of(gpus))
        shared = ", shared with other jobs" if len(gpus) < self.jobs else ""
        return f"{self.jobs} jobs of the sweep run at a time: this job uses GPU {own} of {len(gpus)}{shared}"


ALL_GPUS = GpuShare()  # the share of a run that shares the machine with no other job
ON_CPU = "CPU"  # description of a device without a GPU


FindGpus = Callable[[], Found]


def assign_devices(config: Config, find: FindGpus = discover, share: GpuShare = ALL_GPUS) -> LocalCluster:
    """Return the cluster of a configuration with ``device_taken``, ``gpus`` and ``collectives`` filled in.

    find: finds GPUs; called only if the configuration allows a GPU. share: the GPUs to assign if ``cluster.gpus`` is
    null. GPUs in ``cluster.gpus`` are required, even with ``cluster.device=auto``. Raises ResourceError if a required
    GPU cannot be used, ConfigError if GPUs are named for a run on the CPU, or if NCCL or the precision cannot be used.
    """
    cluster: LocalCluster = config.cluster
    taken = cluster.device_taken or (CPU if cluster.device == CPU else None)
    if taken == CPU:
        if cluster.gpus is not None:
            raise ConfigError(
                f"cluster.gpus={cluster.gpus}: the run began on the CPU, without a GPU; use "
                "cluster.device=gpu, or cluster.gpus=null"
            )
        require_precision(config)
        return replace(cluster, device_taken=CPU)
    found = find()
    if taken is None and cluster.gpus is not None:
        if found.obstacle and cluster.device == AUTO:
            raise ResourceError(
                f"cluster.gpus={cluster.gpus}: expected a GPU that can be used, but {found.obstacle}. `runner doctor` "
                "lists the available GPUs; cluster.gpus=null leaves the choice to cluster.device=auto"
            )
        cluster = replace(cluster, device=GPU)
    if taken is None:
        taken = CPU if cluster.device == AUTO and found.obstacle else GPU
    cluster = replace(cluster, device_taken=taken)
    if taken == GPU and cluster.gpus is None and found.gpus:
        gpus = share.of(found.gpus)
        cluster = replace(cluster, gpus=[gpus[k % len(gpus)].number for k in range(devices_on_gpus(config))])
    config = replace(config, cluster=cluster)
    require_devices(config, found)
    return assign_collectives(config, found)


def reassign_devices(config: Config, find: FindGpus = discover) -> tuple[Config, str]:
    """Return a stored configuration adapted to this machine, and a text on changes that can affect values ("" if none).

    GPUs that ``auto`` chose are reassigned if some do not exist here; if no GPU can be used, the run uses the CPU.
    Raises ResourceError if a GPU that the user requested does not exist here.
    """
    found = found_gpus(config.cluster, find)
    by_auto = config.cluster.device_taken == GPU and config.cluster.device == AUTO
    if by_auto and found.obstacle:
        elsewhere = _with_devices(config, found, device_taken=None, gpus=None, collectives=None)
        return elsewhere, f"the run used a GPU, and the repetition uses the CPU: {found.obstacle}"
    if by_auto and _absent_gpus(config.cluster, found):
        # Keep collectives=none: sums without NCCL do not depend on the machine, so values stay equal bit for bit.
        released = ("gpus", "collectives") if config.cluster.collectives == NCCL else ("gpus",)
        here = _with_devices(config, found, **dict.fromkeys(released))
        before, now = config.cluster.collectives, here.cluster.collectives
        other = f"cluster.collectives was {before} in the run, and is {now} with the GPUs of this machine"
        return here, "" if before == now else other
    require_devices(config, found)
    return config, ""


def _with_devices(config: Config, found: Found, **released: None) -> Config:
    """Return the configuration with the ``released`` keys of its cluster set to None and filled in again."""
    config = replace(config, cluster=replace(config.cluster, **released))
    return replace(config, cluster=assign_devices(config, lambda: found))


def found_gpus(cluster: LocalCluster, find: FindGpus = discover) -> Found:
    """Return the GPUs of this machine, or NO_GPUS without a search if ``cluster.device`` is cpu."""
    return NO_GPUS if cluster.device == CPU else find()


def devices_on_gpus(config: Config) -> int:
    """Return the number of workers and parameter servers that use a GPU in a run whose workers use GPUs."""
    servers = server_processes(config) if config.cluster.server_device == GPU else 0
    return worker_processes(config) + servers


def require_devices(config: Config, found: Found) -> None:
    """Raise ResourceError if a GPU is missing or does not support the precision, ConfigError if the CPU does not."""
    require_precision(config, lambda: found)
    cluster = config.cluster
    if cluster.device_taken != GPU:
        return
    if found.obstacle:
        begun = "" if cluster.device == GPU else " with cluster.device_taken=gpu, as when the run began"
        raise ResourceError(
            f"cluster.device={cluster.device}{begun}: expected a GPU that can be used, but {found.obstacle}. `runner "
            "doctor` lists the available GPUs; cluster.device=cpu uses no GPU, and its results differ in the last bits"
        )
    if absent := _absent_gpus(cluster, found):
        raise ResourceError(
            f"cluster.gpus={cluster.gpus}: there is no GPU {', '.join(map(str, absent))}; expected numbers of "
            f"{', '.join(f'{gpu.number} ({gpu.name})' for gpu in found.gpus)}. Several workers may share a GPU; "
            "cluster.gpus=null uses all GPUs in turn"
        )
    slow = [gpu for gpu in found.gpus if gpu.number in (cluster.gpus or ()) and gpu.capability < BFLOAT16_CAPABILITY]
    if config.precision == "bfloat16" and slow:
        raise ResourceError(
            f"precision=bfloat16: {slow[0]} does not multiply bfloat16, which needs compute capability "
            f"{BFLOAT16_CAPABILITY / 10:.1f}; use precision=float32, other cluster.gpus, or cluster.device=cpu"
        )


def require_precision(config: Config, find: FindGpus = discover) -> None:
    """Raise ConfigError if the run computes on a CPU without instructions for the precision.

    find: finds GPUs; called only if the choice between GPU and CPU depends on the result.
    """
    if config.precision == "bfloat16" and not bfloat16_flags() and _takes_cpu(config.cluster, find):
        raise ConfigError(
            f"precision=bfloat16: expected a CPU with one of {', '.join(BFLOAT16_FLAGS)}; this CPU has none, so "
            "bfloat16 would be slower than float32; use precision=float32, or another machine"
        )


def _takes_cpu(cluster: LocalCluster, find: FindGpus) -> bool:
    chosen = cluster.device_taken or cluster.device
    return chosen == CPU or (chosen == AUTO and cluster.gpus is None and bool(find().obstacle))


def _absent_gpus(cluster: LocalCluster, found: Found) -> list[int]:
    return sorted(set(cluster.gpus or ()) - {gpu.number for gpu in found.gpus})


def reason(cluster: LocalCluster, found: Found) -> str:
    """Return the reason why a run uses its devices. found: the GPUs of this machine."""
    names = ", ".join(gpu.name for gpu in found.gpus)
    if cluster.device != AUTO:
        return f"cluster.device={cluster.device}"
    if cluster.device_taken == GPU:
        return f"cluster.device=auto uses a GPU if there is one, and there is {names}"
    if found.obstacle:
        return f"cluster.device=auto has no usable GPU: {found.obstacle}"
    return f"cluster.device=auto found no GPU when the run began; there is {names} now"


def device_texts(devices: Mapping[str, int | None], found: Found) -> dict[str, str]:
    """Return device name -> description on this machine. devices: device name -> GPU number, None for the CPU."""
    texts = {gpu.number: f"GPU {gpu.number}: {gpu}, driver {found.driver}" for gpu in found.gpus}
    return {name: ON_CPU if number is None else texts[number] for name, number in devices.items()}
