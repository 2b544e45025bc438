"""Plan convolutions with the real cuDNN for absent GPUs, in a separate process, which may load a stub driver.

Read a JSON object from standard input: driver (path of the stub) and jobs, each [gpu, tf32, fields of a Convolution].
Write a JSON list with [name of the plan, workspace in bytes] for each job, or null if there is no plan.
"""

import ctypes
import json
import sys
from functools import cache
from typing import Any

ALIKE = {
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "smCountOrigin": 0,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "reservedSharedMemoryPerBlock": 1024,
    "oversizedSharedMemoryPerBlock": 0,
    "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "totalGlobalMem": 80 << 30,
    "memoryBusWidth": 5120,
    "cudaDeviceId": 0,
    "driverVer": 13000,
}
"""Properties that cuDNN needs and that are equal for all entries of GPUS."""

GPUS = {
    "A100": {"deviceVer": 800, "multiProcessorCount": 108, "maxSharedMemoryPerBlockOptin": 166912}
    | {"smClockRateKHz": 1410000, "memClockRateKHz": 1215000, "l2CacheSize": 40 << 20},
    "H100": {"deviceVer": 900, "multiProcessorCount": 132, "maxSharedMemoryPerBlockOptin": 232448}
    | {"smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "l2CacheSize": 50 << 20},
}


def main() -> None:
    """Plan the jobs read from standard input."""
    request = json.load(sys.stdin)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        ctypes.CDLL(request["driver"], ctypes.RTLD_GLOBAL)
    json.dump([planned(*job) for job in request["jobs"]], sys.stdout)


def planned(gpu: str, tf32: bool, fields: dict[str, Any]) -> tuple[str, int] | None:
    """Return name and workspace bytes of the plan of one convolution, or None if there is no plan."""
    from runner.kernels.gpu.cudnn.graphs import Convolution

    lists_are_tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    plan = library(gpu, tf32).plan(Convolution(**lists_are_tuples))
    return plan and (plan.name, plan.workspace_bytes)


@cache
def library(gpu: str, tf32: bool) -> Any:
    """Return a cuDNN library for the GPU with this name in GPUS, which may be absent."""
    import cudnn

    from runner.kernels.gpu.cudnn.library import CudnnLibrary

    described = cudnn.create_device_properties(json.dumps({**ALIKE, **GPUS[gpu], "deviceName": gpu}))
    return CudnnLibrary(cudnn, lambda: {"device_property": described}, lambda: 0, tf32=tf32)


if __name__ == "__main__":
    main()
