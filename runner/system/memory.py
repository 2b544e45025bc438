"""How much memory the machine has, and how much one process may use."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Of the second and the first version of control groups, as a container sees its own."""


def usable_memory(limits: tuple[Path, ...] = _CGROUP_LIMITS) -> int:
    """Return the bytes of memory of the machine, or of the container where that has fewer."""
    return min([psutil.virtual_memory().total, *(limit for path in limits if (limit := _limit(path)) is not None)])


def available_memory() -> int:
    """Return the bytes that programs can be given now without swapping, at most :func:`usable_memory`."""
    return min(psutil.virtual_memory().available, usable_memory())


def process_room() -> int | None:
    """Return the bytes by which this process may grow within its resource limits (ulimit -v, ulimit -d).

    None if it has no such limit.
    """
    used = psutil.Process().memory_info()
    limits = ((resource.RLIMIT_AS, used.vms), (resource.RLIMIT_DATA, used.data))
    rooms = [(resource.getrlimit(kind)[0], taken) for kind, taken in limits]
    return min((max(0, limit - taken) for limit, taken in rooms if limit != resource.RLIM_INFINITY), default=None)


def _limit(path: Path) -> int | None:
    """The number in a file; None where there is no file or no limit."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
