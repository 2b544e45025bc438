"""Facts about GPUs from the NVIDIA driver and its management library NVML; no Python package is needed."""

import ctypes
import gc
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

MANAGEMENT = "libnvidia-ml.so.1"
_PREFIXES = ("GPU", "MIG")
"""Prefixes of NVML's UUID strings of GPUs and of MIG partitions."""


class _Memory(ctypes.Structure):
    """The C struct nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def free_bytes(gpus: Iterable[bytes], library: str = MANAGEMENT) -> list[int | None]:
    """Return the free bytes of each GPU, or None if unknown. gpus: UUID of each GPU, 16 bytes from the driver."""
    wanted = list(gpus)
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return [None] * len(wanted)
    if nvml.nvmlInit_v2():
        return [None] * len(wanted)
    try:
        return [_free(nvml, uuid.UUID(bytes=gpu)) for gpu in wanted]
    finally:
        nvml.nvmlShutdown()


def _free(nvml: ctypes.CDLL, gpu: uuid.UUID) -> int | None:
    device, memory = ctypes.c_void_p(), _Memory()
    for prefix in _PREFIXES:
        name = f"{prefix}-{gpu}".encode()
        if not nvml.nvmlDeviceGetHandleByUUID(ctypes.c_char_p(name), ctypes.byref(device)):
            failed = nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
            return None if failed else int(memory.free)
    return None


LIBRARY = "libcuda.so.1"
_MODULE_VERSION = Path("/sys/module/nvidia/version")
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""
_NO_DEVICE = 100


@dataclass(frozen=True)
class GpuFacts:
    """A GPU that the driver reports.

    number: index among the GPUs in CUDA_VISIBLE_DEVICES. capability: compute capability, 90 for 9.0. free_bytes: free
    memory at the time of the query, or None if unknown.
    """

    number: int
    name: str
    capability: int
    memory_bytes: int
    free_bytes: int | None = None

    @property
    def available_bytes(self) -> int:
        """Free bytes, or all bytes if the free memory is unknown."""
        return self.memory_bytes if self.free_bytes is None else self.free_bytes

    def __str__(self) -> str:
        major, minor = divmod(self.capability, 10)
        return f"{self.name}, compute capability {major}.{minor}, {self.memory_bytes / 2**30:.1f} GiB"


@dataclass(frozen=True)
class DriverFacts:
    """The NVIDIA driver.

    release: version of the kernel module, or "" if unknown. cuda: newest supported CUDA version, 1000 major + 10 minor,
    or 0 without a driver. fault: the reason why there is no GPU, or "".
    """

    release: str = ""
    cuda: int = 0
    gpus: tuple[GpuFacts, ...] = ()
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.release or 'of unknown version'} for CUDA up to {self.cuda // 1000}.{self.cuda % 1000 // 10}"


def ask_driver(
    library: str = LIBRARY, module_version: Path = _MODULE_VERSION, management: str = MANAGEMENT
) -> DriverFacts:
    """Return facts from the driver of this machine, without creating a CUDA context or allocating GPU memory.

    library, module_version, management: paths of the driver, of its version file and of NVML; replaced in tests.
    """
    release = module_version.read_text(encoding="ascii").strip() if module_version.is_file() else ""
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        return DriverFacts(release, fault=f"there is no NVIDIA driver: {error}")
    try:
        _call(driver, "cuInit", ctypes.c_uint(0))
        cuda = _int(driver, "cuDriverGetVersion")
        numbers = range(_int(driver, "cuDeviceGetCount"))
        gpus = tuple(_gpu(driver, number) for number in numbers)
        if gpus:
            # Closed sessions are reference cycles, whose GPU memory is freed only by the garbage collector.
            gc.collect()
        free = free_bytes([_uuid(driver, number) for number in numbers], management)
    except _DriverError as error:
        return DriverFacts(release, fault=str(error))
    known = (replace(gpu, free_bytes=each) for gpu, each in zip(gpus, free, strict=True))
    return DriverFacts(release, cuda, tuple(known), "" if gpus else "the driver finds no GPU")


class _DriverError(Exception):
    """The driver returned an error."""


def _gpu(driver: ctypes.CDLL, number: int) -> GpuFacts:
    device = ctypes.c_int(_int(driver, "cuDeviceGet", ctypes.c_int(number)))
    name = ctypes.create_string_buffer(256)
    _call(driver, "cuDeviceGetName", name, ctypes.c_int(len(name)), device)
    memory = ctypes.c_size_t()
    _call(driver, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    major, minor = (_int(driver, "cuDeviceGetAttribute", ctypes.c_int(which), device) for which in (_MAJOR, _MINOR))
    return GpuFacts(number, name.value.decode(errors="replace"), 10 * major + minor, memory.value)


def _uuid(driver: ctypes.CDLL, number: int) -> bytes:
    """Return the 16 bytes of a CUuuid."""
    device, found = ctypes.c_int(_int(driver, "cuDeviceGet", ctypes.c_int(number))), (ctypes.c_ubyte * 16)()
    # Only cuDeviceGetUuid_v2 supports MIG partitions; drivers for CUDA 11.3 and older lack this function.
    name = "cuDeviceGetUuid_v2" if hasattr(driver, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    _call(driver, name, ctypes.byref(found), device)
    return bytes(found)


def _int(driver: ctypes.CDLL, function: str, *arguments: Any) -> int:
    """Return the int that a driver function writes to its first argument."""
    value = ctypes.c_int()
    _call(driver, function, ctypes.byref(value), *arguments)
    return value.value


def _call(driver: ctypes.CDLL, name: str, *arguments: Any) -> None:
    function: Callable[..., int] = getattr(driver, name)
    status = function(*arguments)
    if status == _NO_DEVICE:
        raise _DriverError("the driver finds no GPU (CUDA_VISIBLE_DEVICES may hide them)")
    if status:
        raise _DriverError(f"{name} of the driver fails with CUDA error {status}; `nvidia-smi` should list the GPUs")
