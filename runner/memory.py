"""How much memory this process may use."""

from __future__ import annotations

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


def _limit(path: Path) -> int | None:
    """The number in a file; None where there is no file or no limit."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
