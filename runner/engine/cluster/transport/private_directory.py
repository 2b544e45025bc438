"""The private directory of a run, with its sockets, tickets and shared memory: mode 0700, removed when the run ends.

``ipc://`` sockets are protected only by file permissions, so no other user may have access. The directory is in
/dev/shm if available, so that its files are in memory. The process that creates the directory locks it. The kernel
releases the lock even after ``kill -9``, and the next run removes directories that are no longer locked.
"""

import fcntl
import ipaddress
import logging
import os
import re
import secrets
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.errors import ClusterError, ConfigError, ResourceError, SecurityError

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
PRIVATE_MODE = 0o700
_PREFIX = "runner-"
_NAME = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}")


@contextmanager
def private_directory(parent: Path | None = None) -> Iterator[Path]:
    """Create a directory locked by this process, and remove the directory and its files on exit.

    parent: by default /dev/shm or, with a warning if that is unusable, the temporary directory. Directories that
    dead runs of this user left in ``parent`` are removed. Raises ResourceError if no directory can be created.
    """
    parent = parent or _default_parent()
    try:
        remove_abandoned(parent)
        lock = None
        while lock is None:
            path = parent / f"{_PREFIX}{secrets.token_hex(8)}"
            path.mkdir(mode=PRIVATE_MODE)
            lock = _lock(path)
    except OSError as error:
        raise ResourceError(
            f"cannot create a private directory for sockets and shared memory in {parent}: {error.strerror}; "
            "expected a writable directory with free space"
        ) from error
    try:
        yield path
    finally:
        _remove(path)
        os.close(lock)


def check_private(directory: Path) -> None:
    """Raise SecurityError unless ``directory`` is a real directory that only this user can access.

    Raises ClusterError if there is no such directory.
    """
    try:
        status = directory.lstat()
    except OSError as error:
        reason = f"{error.strerror}; the directory of a run is removed when the run ends"
        raise ClusterError(f"cannot open the private directory {directory}: {reason}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise SecurityError(f"{directory}: expected a directory, not a symbolic link")
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise SecurityError(
            f"{directory}: mode {stat.S_IMODE(status.st_mode):04o} of user {status.st_uid}, "
            f"expected {PRIVATE_MODE:04o} of user {os.geteuid()}"
        )


def remove_abandoned(parent: Path) -> None:
    """Remove the directories in ``parent`` that killed runs of this user have left behind."""
    for path in parent.iterdir():
        lock = _lock(path) if _NAME.fullmatch(path.name) and _is_own_directory(path) else None
        if lock is not None:
            _remove(path)
            os.close(lock)
            log.info("removed %s, which a killed run left behind", path)


def _is_own_directory(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:  # another run has removed the directory
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _default_parent() -> Path:
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return SHARED_MEMORY
    parent = Path(tempfile.gettempdir())
    log.warning("%s is missing or not writable: workers exchange tensors through files in %s", SHARED_MEMORY, parent)
    return parent


def _lock(path: Path) -> int | None:
    """Lock the directory and return the descriptor; None if another process has locked or removed it.

    Between mkdir and the lock, another run may remove the directory as abandoned. The path then no longer refers to the
    locked directory, and the caller tries another name.
    """
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), path.lstat()):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass  # Another process has locked or removed the directory.
    os.close(lock)
    return None


def _remove(path: Path) -> None:
    """Remove a directory without subdirectories; other processes may remove its files at the same time."""
    for entry in os.scandir(path):
        Path(entry.path).unlink(missing_ok=True)
    path.rmdir()


MAX_SOCKET_PATH = 107  # bytes of the longest path of a Unix socket: the size of ``sun_path`` without its null byte
_IPC = "ipc://"
_TCP = "tcp://"
_CONNECTABLE = re.compile(rf"{_TCP}(?:\[[^][*]+\]|[^][:*]+):([0-9]{{1,5}})")


def inbox_address(directory: Path, name: str) -> str:
    """Return the address of the inbox of peer ``name``; raises ResourceError if the socket path is too long."""
    path = directory / name
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        raise ResourceError(
            f"socket path {path} has {length} bytes, expected at most {MAX_SOCKET_PATH}: "
            "use a private directory with a shorter name, such as one in /dev/shm or /tmp"
        )
    return f"{_IPC}{path}"


def inbox_path(address: str) -> Path:
    """Return the socket file of an ``ipc://`` address; raises ConfigError for any other address."""
    path = Path(address.removeprefix(_IPC))
    if not address.startswith(_IPC) or not path.is_absolute():
        raise ConfigError(
            f"address {address!r}: expected ipc:// and an absolute path, such as ipc:///dev/shm/run/master-0"
        )
    return path


def sibling_address(address: str, name: str) -> str:
    """Return the address of the inbox of peer ``name``, in the same directory as the inbox at ``address``."""
    return inbox_address(inbox_path(address).parent, name)


def check_bind_address(address: str, has_keys: bool) -> None:
    """Raise SecurityError unless ``address`` is a socket in a private directory or, if there are keys, an IP address.

    Loopback addresses need keys too, because other users of the host can connect to them. Raises ClusterError if the
    private directory does not exist.
    """
    if address.startswith(_IPC):
        check_private(inbox_path(address).parent)
    elif not has_keys:
        raise SecurityError(
            f"refused to listen on {address!r} without CURVE keys; expected ipc:// in a private directory, or keys"
        )
    elif not _is_ip_address(address):
        raise SecurityError(f"refused to listen on {address!r}: expected tcp://IP:PORT with an IP address of this host")


def _is_ip_address(address: str) -> bool:
    """Return whether an address names one network interface; a wildcard such as 0.0.0.0 names all of them."""
    try:
        return not ipaddress.ip_address(tcp_host(address)).is_unspecified
    except ValueError:
        return False


def tcp_host(address: str) -> str:
    """Return the host of a ``tcp://HOST:PORT`` address; raises ValueError for any other address."""
    host, colon, port = address.removeprefix(_TCP).rpartition(":")
    if not (address.startswith(_TCP) and host and colon and (port == "*" or port.isdigit())):
        raise ValueError(f"address {address!r}: expected tcp://HOST:PORT")
    return host.strip("[]")


def own_address(address: str, name: str) -> str:
    """Return the address on which peer ``name`` of this host listens so that the process at ``address`` can reach it.

    For ``ipc://``, a socket in the same directory; for ``tcp://``, a free port on the network interface that leads to
    ``address``. Raises ConfigError if no process can connect to an address of this form; ClusterError if no interface
    leads there or the host's name is unknown.
    """
    if address.startswith(_IPC):
        return sibling_address(address, name)
    found = _CONNECTABLE.fullmatch(address)
    if found is None or not 0 < int(found[1]) < 1 << 16:
        raise ConfigError(f"{name} cannot join the run at {address!r}: expected tcp://HOST:PORT, as the run printed it")
    try:
        return _address_towards(tcp_host(address))
    except (OSError, ValueError) as error:
        raise ClusterError(f"{name} cannot reach {address}: {error}") from error


def interface_towards(hosts: Sequence[str]) -> str:
    """Return ``tcp://IP:*`` for the network interface of this host that leads to ``hosts``, names or IP addresses.

    The name of this host may lead to a loopback address; other addresses are preferred. Raises ResourceError if any
    host cannot be reached through an interface.
    """
    try:
        found = [_address_towards(host) for host in hosts]
    except (OSError, ValueError) as error:
        message = f"no network interface leads to {', '.join(hosts)}: {error}; set cluster.launcher.address"
        raise ResourceError(message) from error
    return min(found, key=lambda address: ipaddress.ip_address(tcp_host(address)).is_loopback)


def _address_towards(host: str) -> str:
    """Return ``tcp://IP:*`` for the network interface of this host that leads to ``host``.

    Raises OSError, or ValueError if ``host`` cannot be a name, such as ``node..cluster``.
    """
    family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing; the kernel chooses the interface
        own = probe.getsockname()[0]
    return f"{_TCP}[{own}]:*" if ":" in own else f"{_TCP}{own}:*"
