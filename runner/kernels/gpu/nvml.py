"""Free memory of GPUs from NVIDIA's management library NVML, without a CUDA context."""

import ctypes
import uuid
from collections.abc import Iterable

LIBRARY = "libnvidia-ml.so.1"
_PREFIXES = ("GPU", "MIG")
"""Prefixes of the names of GPUs and of MIG partitions."""


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def free_bytes(gpus: Iterable[bytes], library: str = LIBRARY) -> list[int | None]:
    """Return the free memory of each GPU, or None if unknown. gpus: the 16 bytes of their UUIDs from the driver."""
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
