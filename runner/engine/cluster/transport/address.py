"""Addresses of inboxes: ``ipc://`` in a private directory, or loopback; all others are refused."""

import ipaddress
import os
from pathlib import Path

from runner.engine.cluster.transport.private_directory import check_private
from runner.errors import ConfigError, ResourceError, SecurityError

MAX_SOCKET_PATH = 107
"""Bytes of a Unix socket's path: the kernel's ``sun_path`` less its closing zero."""

_IPC = "ipc://"
_TCP = "tcp://"


def inbox_address(directory: Path, name: str) -> str:
    """Return the address of the inbox of peer ``name``; raises ResourceError if its path is too long."""
    path = directory / name
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        raise ResourceError(
            f"socket path {path} has {length} bytes, expected at most {MAX_SOCKET_PATH}: "
            "use a private directory with a shorter name, such as one in /dev/shm or /tmp"
        )
    return f"{_IPC}{path}"


def inbox_path(address: str) -> Path:
    """Return the socket file of an ``ipc://`` address; raises ConfigError for any other."""
    path = Path(address.removeprefix(_IPC))
    if not address.startswith(_IPC) or not path.is_absolute():
        raise ConfigError(
            f"address {address!r}: expected ipc:// and an absolute path, as in ipc:///dev/shm/run/master-0"
        )
    return path


def sibling_address(address: str, name: str) -> str:
    """Return the address of ``name``'s inbox, which shares the directory of the inbox at ``address``."""
    return inbox_address(inbox_path(address).parent, name)


def check_bind_address(address: str) -> None:
    """Raise SecurityError unless only this user or this host can reach ``address``."""
    if address.startswith(_IPC):
        check_private(inbox_path(address).parent)
        return
    if not (address.startswith(_TCP) and _is_loopback(address)):
        raise SecurityError(
            f"refused to listen on {address!r}: beyond this host a socket needs CURVE keys; "
            "expected ipc:// in a private directory, or tcp://127.0.0.1:PORT"
        )


def _is_loopback(address: str) -> bool:
    host = address.removeprefix(_TCP).rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # A name or wildcard may resolve to another address, so it does not count as loopback.
