"""Names of the peers of a run: ``<role>-<index>``, such as ``master-0``, ``worker-3`` and ``heartbeat-3``.

The heartbeat thread of worker 3 is a peer of its own, because it has a connection of its own.
"""

from __future__ import annotations

import re

MASTER_ROLE = "master"
WORKER_ROLE = "worker"
HEARTBEAT_ROLE = "heartbeat"
ROLES = (MASTER_ROLE, WORKER_ROLE, HEARTBEAT_ROLE)

MASTER = f"{MASTER_ROLE}-0"

_NAME = re.compile(rf"({'|'.join(ROLES)})-(0|[1-9][0-9]{{0,5}})")


def peer_name(role: str, index: int) -> str:
    """Return the name of peer ``index`` of ``role``; raises ValueError when that is no name of a peer."""
    name = f"{role}-{index}"
    split_name(name)
    return name


def split_name(name: str) -> tuple[str, int]:
    """Return (role, index) of a peer's name; raises ValueError when it is not one."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"peer name {name[:80]!a}: expected <role>-<index> with a role of {', '.join(ROLES)}")
    return match[1], int(match[2])
