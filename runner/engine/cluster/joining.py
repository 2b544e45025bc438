"""Facts from which the master decides whether a process may join the run and whether the two share memory."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from runner.engine.cluster.transport.private_directory import SHARED_MEMORY

HOST, MEMORY = "host", "memory"
"""Names of the facts that may differ between the processes of a run; all other facts must be equal."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_IDS = Path("/proc/self/ns/pid")


def host_facts(name: str = "") -> dict[str, str]:
    """Return the name of this host, and a memory id, which is equal in two processes only if they share memory.

    name: the name that the launcher gives to this host; "" for its own name.

    Processes share memory if they have the same kernel, /dev/shm, namespace of process ids and user. Each container
    usually has a separate namespace.
    """
    boot = _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else platform.node()
    memory = SHARED_MEMORY.stat().st_dev if SHARED_MEMORY.is_dir() else 0
    ids = _PROCESS_IDS.stat().st_ino if _PROCESS_IDS.exists() else 0
    return {HOST: name or platform.node(), MEMORY: f"{boot}/{memory}/{ids}/{os.geteuid()}"}


def difference(found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Return the reason why a process with the facts ``found`` may not join, or ""."""
    names = sorted({*found, *expected} - {HOST, MEMORY})
    different = [
        f"{name} is {found.get(name, 'missing')}, expected {expected.get(name, 'none')}"
        for name in names
        if found.get(name) != expected.get(name)
    ]
    return f"{'; '.join(different)}, as in the process that started the run" if different else ""
