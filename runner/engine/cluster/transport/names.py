"""Names of the peers of a run: ``<role>-<index>``, such as ``master-0``, ``worker-3`` and ``ps-0``.

A process that runs a device is named after the device's job and task: ``/job:ps/task:0`` runs in ``ps-0``. Its
heartbeat thread is a separate peer, such as ``ps_heartbeat-0``, because it has a separate connection.
"""

import re

MASTER_ROLE = "master"
WORKER_ROLE = "worker"
SERVER_ROLE = "ps"
DEVICE_ROLES = (WORKER_ROLE, SERVER_ROLE)
"""Roles of the processes that run devices; both run the same program."""

_HEARTBEAT = "_heartbeat"
HEARTBEAT_ROLES = tuple(role + _HEARTBEAT for role in DEVICE_ROLES)
ROLES = (MASTER_ROLE, *DEVICE_ROLES, *HEARTBEAT_ROLES)

MASTER = f"{MASTER_ROLE}-0"

_NAME = re.compile(rf"({'|'.join(ROLES)})-(0|[1-9][0-9]{{0,5}})")


def peer_name(role: str, index: int) -> str:
    """Return the name of peer ``index`` of ``role``; raises ValueError if it is not a valid peer name."""
    name = f"{role}-{index}"
    split_name(name)
    return name


def split_name(name: str) -> tuple[str, int]:
    """Return (role, index) of a peer's name; raises ValueError if it is malformed."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"peer name {name[:80]!a}: expected <role>-<index> with a role of {', '.join(ROLES)}")
    return match[1], int(match[2])


def process_names(workers: int, servers: int = 0) -> list[str]:
    """Return the names of all processes of a run but the master: workers first, then parameter servers."""
    counts = {WORKER_ROLE: workers, SERVER_ROLE: servers}
    return [peer_name(role, index) for role, count in counts.items() for index in range(count)]


def heartbeat_role(role: str) -> str:
    """Return the role of the heartbeat threads of processes of ``role``."""
    return role + _HEARTBEAT


def process_of_heartbeat(heartbeat: str) -> str:
    """Return the name of the process whose heartbeat thread is named ``heartbeat``."""
    role, index = split_name(heartbeat)
    return peer_name(role.removesuffix(_HEARTBEAT), index)
