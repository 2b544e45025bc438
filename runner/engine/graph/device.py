"""Device names and clusters of devices (TensorFlow whitepaper 2016, section 3).

A full name is ``/job:worker/task:3/device:cpu:0``. A constraint may omit parts of the name. For example, a strategy
specifies only the task, and the cluster determines the device type. Several (logical) devices may share a core or GPU.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

_PATTERN = re.compile(r"(?:/job:([a-z_]+))?(?:/task:(\d+))?(?:/device:([a-z]+)(?::(\d+))?)?", re.ASCII)


@dataclass(frozen=True, order=True)
class DeviceName:
    """A full or partial device name; a part that is None matches any value."""

    job: str | None = None
    task: int | None = None
    type: str | None = None
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> "DeviceName":
        """Parse a full or partial name; raises ValueError with the expected form."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(
                f"device {text!r}: expected '/job:NAME/task:N/device:TYPE:N' or some of these parts in this order"
            )
        job, task, kind, index = match.groups()
        return cls(job, None if task is None else int(task), kind, None if index is None else int(index))

    def __str__(self) -> str:
        text = "" if self.job is None else f"/job:{self.job}"
        text += "" if self.task is None else f"/task:{self.task}"
        if self.type is not None:
            text += f"/device:{self.type}" + ("" if self.index is None else f":{self.index}")
        return text

    @property
    def is_full(self) -> bool:
        return None not in (self.job, self.task, self.type, self.index)

    def matches(self, constraint: "DeviceName") -> bool:
        """Return whether this name satisfies every part that the constraint specifies."""
        wanted = (constraint.job, constraint.task, constraint.type, constraint.index)
        own = (self.job, self.task, self.type, self.index)
        return all(part in (None, mine) for part, mine in zip(wanted, own, strict=True))


@dataclass(frozen=True)
class GpuOptions:
    """Options of the GPUs of a run, the same for all GPUs in every process.

    tf32: whether inputs of float32 products and convolutions may be rounded to a mantissa of 10 bits. compare_plans:
    whether each process times cuDNN's plans for a convolution and uses the fastest; processes may choose different
    plans. code_folder: folder that caches compiled CUDA sources between runs, "" for no cache.
    """

    tf32: bool = False
    compare_plans: bool = False
    code_folder: str = ""


DEFAULT_GPU_OPTIONS = GpuOptions()
"""The GPU options if none are given."""


CPU, GPU = DEVICE_TYPES = ("cpu", "gpu")
"""Types of devices: cores of a CPU, or a GPU."""


@dataclass(frozen=True)
class Device:
    """A logical device and the rates that the cost model assumes for it.

    flops_per_s: floating-point operations per second; bytes_per_s: memory traffic per second. The defaults are the
    rates of one unshared CPU core. gpu: index of the device's GPU among the GPUs that its process sees; None for a CPU.
    use: options of that GPU.

    Raises ValueError if a device of type gpu has no GPU, or a device of another type has a GPU or GPU options.
    """

    name: str
    flops_per_s: float = 2e11
    bytes_per_s: float = 1e10
    gpu: int | None = None
    use: GpuOptions = DEFAULT_GPU_OPTIONS

    def __post_init__(self) -> None:
        has_gpu = self.gpu is not None and self.gpu >= 0
        if has_gpu != (self.type == GPU) or (self.use != DEFAULT_GPU_OPTIONS and not has_gpu):
            raise ValueError(
                f"device {self.name!r} with gpu={self.gpu} and {self.use}: expected the index of a GPU, from "
                "0, for type gpu, and no index and no options for other types"
            )

    @property
    def type(self) -> str:
        return DeviceName.parse(self.name).type or ""


COMPRESSIONS = ("none", "high16")
"""Compressions of transfers: none, or sending only the upper 16 bits of each float32 element."""

NO_LIBRARY, NCCL = COLLECTIVES = ("none", "nccl")
"""Libraries that sum tensors over devices. With "none", each device receives all tensors and adds them."""

DISTRIBUTIONS = ("none", "constant", "lognormal")
"""Distributions of the delays of slow workers: no delay, always the median, or a lognormal distribution."""

LONGEST_DELAY_S = 60.0
"""Maximum of a random delay in seconds. A worker counts as stuck only after a longer time."""


@dataclass(frozen=True)
class Cluster:
    """The devices on which a graph may be placed and the links between them.

    latency_s, bytes_per_s: latency and rate of each link; every ordered pair of devices has its own link. compression:
    one of :data:`COMPRESSIONS`, for all links. collectives: one of :data:`COLLECTIVES`. With NCCL, sums include all
    devices of type gpu, which must use different GPUs and belong to different tasks.
    """

    devices: tuple[Device, ...]
    latency_s: float = 5e-4
    bytes_per_s: float = 2e9
    compression: str = "none"
    collectives: str = NO_LIBRARY

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise ValueError(f"cluster compression {self.compression!r}: expected one of {', '.join(COMPRESSIONS)}")
        names = [device.name for device in self.devices]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"cluster devices {names}: expected at least one and no name twice")
        for name in names:
            if not DeviceName.parse(name).is_full:
                raise ValueError(f"cluster device {name!r}: expected a full name")
        self._check_collectives()

    def _check_collectives(self) -> None:
        if self.collectives not in COLLECTIVES:
            raise ValueError(f"cluster collectives {self.collectives!r}: expected one of {', '.join(COLLECTIVES)}")
        gpus = [device.gpu for device in self.devices if device.name in self.members]
        tasks = {task_of(name) for name in self.members}
        if self.members and not 1 < len(gpus) == len(set(gpus)) == len(tasks):
            raise ValueError(
                f"cluster collectives {self.collectives!r} with GPUs {gpus} of {len(tasks)} tasks: expected two or "
                "more different GPUs, each of a different task"
            )

    def device(self, name: str) -> Device:
        """Return the device with the full name ``name``; raises ValueError listing the devices if there is none."""
        for device in self.devices:
            if device.name == name:
                return device
        raise ValueError(f"device {name!r} is not in the cluster: {', '.join(d.name for d in self.devices)}")

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the devices that ``collectives`` sums over, in order of rank; () for "none"."""
        if self.collectives == NO_LIBRARY:
            return ()
        return tuple(device.name for device in self.devices if device.type == GPU)

    def transfer_s(self, nbytes: int) -> float:
        """Return the seconds that the cost model assumes for moving ``nbytes`` between two devices."""
        return self.latency_s + nbytes / self.bytes_per_s


def worker_task(task: int) -> str:
    """Return the partial device name of a worker, without a device type."""
    return f"/job:worker/task:{task}"


def server_task(task: int) -> str:
    """Return the partial device name of a parameter server, without a device type."""
    return f"/job:ps/task:{task}"


def worker_device(task: int, kind: str = CPU) -> str:
    """Return the full name of a worker's first device of type ``kind``."""
    return f"{worker_task(task)}/device:{kind}:0"


def server_device(task: int, kind: str = CPU) -> str:
    """Return the full name of a parameter server's first device of type ``kind``."""
    return f"{server_task(task)}/device:{kind}:0"


@lru_cache(maxsize=4096)
def task_of(name: str) -> str:
    """Return the device name ``name`` without type and index."""
    return str(replace(DeviceName.parse(name), type=None, index=None))


def device_slug(name: str) -> str:
    """Return a full device name as text that is valid in node names."""
    return name.strip("/").replace("/", ".").replace(":", "")


GPU_FLOPS_PER_S = 2e13
GPU_BYTES_PER_S = 2e12
"""Rates that the cost model assumes for every unshared GPU, so that plans do not depend on the GPU model."""

GPU_LATENCY_S = 1e-5
GPU_LINK_BYTES_PER_S = 2e10
"""Latency and rate that the cost model assumes for a copy between devices of one process."""


@dataclass(frozen=True)
class Gpus:
    """The GPUs that the devices of a local cluster use.

    of_workers: index of each worker's GPU. of_servers: index of each parameter server's GPU; () if servers are on the
    CPU. use: options of all GPUs.
    """

    of_workers: tuple[int, ...]
    of_servers: tuple[int, ...] = ()
    use: GpuOptions = DEFAULT_GPU_OPTIONS

    def by_device(self, workers: int, servers: int) -> list[int | None]:
        """Return each worker's, then each server's GPU index (None: CPU); raises ValueError if a GPU count is wrong."""
        if len(self.of_workers) != workers or len(self.of_servers) not in (0, servers):
            raise ValueError(
                f"GPUs {list(self.of_workers)} of workers and {list(self.of_servers)} of servers: expected one for "
                f"each of {workers} workers, and one for each of {servers} servers or none"
            )
        return [*self.of_workers, *(self.of_servers or [None] * servers)]


def local_cluster(
    workers: int,
    servers: int = 0,
    *,
    compression: str = "none",
    collectives: str = NO_LIBRARY,
    latency_s: float = Cluster.latency_s,
    bytes_per_s: float = Cluster.bytes_per_s,
    cores: float = 1.0,
    gpus: Gpus | None = None,
) -> Cluster:
    """Return a cluster of ``workers`` worker tasks and then ``servers`` parameter-server tasks, with one device each.

    cores: cores per CPU device in the cost model; below 1 if devices share a core. gpus: GPUs of the devices; None if
    all devices are CPUs. Devices that share a GPU divide its rates equally.
    """
    tasks = [*(worker_task(k) for k in range(workers)), *(server_task(j) for j in range(servers))]
    numbers = [None] * len(tasks) if gpus is None else gpus.by_device(workers, servers)
    sharing = Counter(numbers)
    devices = []
    for task, number in zip(tasks, numbers, strict=True):
        if gpus is None or number is None:
            flops, traffic = cores * Device.flops_per_s, cores * Device.bytes_per_s
            devices.append(Device(f"{task}/device:{CPU}:0", flops, traffic))
        else:
            flops, traffic = GPU_FLOPS_PER_S / sharing[number], GPU_BYTES_PER_S / sharing[number]
            devices.append(Device(f"{task}/device:{GPU}:0", flops, traffic, number, gpus.use))
    return Cluster(tuple(devices), latency_s, bytes_per_s, compression, collectives)
