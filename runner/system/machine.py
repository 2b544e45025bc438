"""The cores, the CPU and the memory of this machine, as the operating system reports them."""

import os
import resource
from pathlib import Path

import psutil

BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")  # CPU flags of instructions that multiply bfloat16; either is sufficient
_CPUINFO = Path("/proc/cpuinfo")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files of control groups, version 2 and version 1, with the memory limit of a container."""


def usable_cores() -> int:
    """Return the number of cores that this process may use, or of all cores if the system does not report it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_facts(path: Path = _CPUINFO) -> dict[str, str]:
    """Return name -> value for the first CPU in a cpuinfo file; empty if there is no such file."""
    if not path.is_file():
        return {}
    first = path.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def cpu_flags() -> frozenset[str]:
    """Return the instruction sets of the CPU; empty on systems that do not report them."""
    return frozenset(cpu_facts().get("flags", "").split())


def bfloat16_flags() -> list[str]:
    """Return the instruction sets for bfloat16 that the CPU has."""
    return [flag for flag in BFLOAT16_FLAGS if flag in cpu_flags()]


def usable_memory(limits: tuple[Path, ...] = _CGROUP_LIMITS) -> int:
    """Return the bytes of memory of the machine, or of the container if it has a smaller limit."""
    return min([psutil.virtual_memory().total, *(limit for path in limits if (limit := _limit(path)) is not None)])


def available_memory() -> int:
    """Return the bytes that programs can allocate now without swapping, at most :func:`usable_memory`."""
    return min(psutil.virtual_memory().available, usable_memory())


def process_room() -> int | None:
    """Return the bytes by which this process may grow within its limits (ulimit -v, -d); None without a limit."""
    used = psutil.Process().memory_info()
    limits = ((resource.RLIMIT_AS, used.vms), (resource.RLIMIT_DATA, used.data))
    rooms = [(resource.getrlimit(kind)[0], taken) for kind, taken in limits]
    return min((max(0, limit - taken) for limit, taken in rooms if limit != resource.RLIM_INFINITY), default=None)


def _limit(path: Path) -> int | None:
    """Return the number in a file; None if there is no file or no limit."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
