"""The private directory of a run, with its sockets, tokens and shared memory: mode 0700, removed at the end of the run.

``ipc://`` sockets are protected only by file permissions, so no other user may have access. The directory is in
/dev/shm if available, so that its files are in memory. The process that creates the directory locks it. The kernel
releases the lock even after ``kill -9``, and the next run removes directories that are no longer locked.

The token of a run is a secret that a process must present to be admitted. The token is passed in a file of mode 0600,
never in arguments or the environment, which other processes can read. Each reader has a separate token file and removes
the file after reading, so a token file can be read only once.
"""

import fcntl
import ipaddress
import logging
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import ConfigError, ResourceError, SecurityError

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
PRIVATE_MODE = 0o700

_PREFIX = "runner-"
_NAME = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}")


@contextmanager
def private_directory(parent: Path | None = None) -> Iterator[Path]:
    """Create a directory locked by this process, and remove the directory and its files on exit.

    parent: by default /dev/shm or, if that is unusable, the temporary directory, with a warning. Directories that
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
            f"no private directory for sockets and shared memory in {parent}: {error.strerror}; "
            "expected a writable directory with free space"
        ) from error
    try:
        yield path
    finally:
        _remove(path)
        os.close(lock)


def check_private(directory: Path) -> None:
    """Raise SecurityError unless ``directory`` is a real directory that only this user can access."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise SecurityError(f"{directory}: expected a directory, not a symbolic link")
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise SecurityError(
            f"{directory}: mode {stat.S_IMODE(status.st_mode):04o} of user {status.st_uid}, "
            f"expected {PRIVATE_MODE:04o} of user {os.geteuid()}"
        )


def remove_abandoned(parent: Path) -> None:
    """Remove the directories in ``parent`` that killed runs of this user have left behind."""
    for entry in os.scandir(parent):
        if not _NAME.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
            continue
        if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
            continue
        lock = _lock(Path(entry.path))
        if lock is not None:
            _remove(Path(entry.path))
            os.close(lock)
            log.info("removed %s, left behind by a run that was killed", entry.path)


def _default_parent() -> Path:
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return SHARED_MEMORY
    parent = Path(tempfile.gettempdir())
    log.warning("%s cannot be used: tensors between workers go through files in %s", SHARED_MEMORY, parent)
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


_TOKEN = re.compile(r"[0-9a-f]{64}")


def new_token() -> str:
    """Return 256 fresh random bits as 64 hexadecimal digits."""
    return secrets.token_hex(32)


def write_token(directory: Path, reader: str, token: str) -> Path:
    """Write the token to a new file for one reader, such as ``worker-0``, and return the path of the file."""
    path = directory / f"token-{reader}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token)
    return path


def read_token(path: Path) -> str:
    """Return the token in ``path`` and remove the file.

    Raises SecurityError unless ``path`` is a regular file that only this user can read and that contains only a token.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise SecurityError(f"token file {path}: {error.strerror}; each token file can be read once") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
            raise SecurityError(
                f"token file {path}: mode {mode:04o} of user {status.st_uid}, "
                f"expected a regular file with mode 0600 of user {os.geteuid()}"
            )
        content = file.read(65)
    path.unlink()
    token = content.decode("ascii", "replace")
    if not _TOKEN.fullmatch(token):
        raise SecurityError(f"token file {path}: expected 64 hexadecimal digits and nothing else")
    return token


MAX_SOCKET_PATH = 107
"""Maximum length of a Unix socket path in bytes: the size of ``sun_path`` without the terminating null byte."""

_IPC = "ipc://"
_TCP = "tcp://"


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
            f"address {address!r}: expected ipc:// and an absolute path, as in ipc:///dev/shm/run/master-0"
        )
    return path


def sibling_address(address: str, name: str) -> str:
    """Return the address of the inbox of peer ``name``, in the same directory as the inbox at ``address``."""
    return inbox_address(inbox_path(address).parent, name)


def check_bind_address(address: str) -> None:
    """Raise SecurityError unless ``address`` is a socket in a private directory or a loopback address."""
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
