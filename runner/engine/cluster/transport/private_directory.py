"""The private directory of a run's sockets, tokens and shared memory: mode 0700, removed at the end of the run.

``ipc://`` sockets are protected only by file permissions, so no other user may have access. The directory is in
/dev/shm if available, so that arenas in it are in memory. The process that creates it holds a lock on it; the kernel
releases the lock even after ``kill -9``, and the next run removes directories that are no longer locked.
"""

import fcntl
import logging
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from types import TracebackType

from runner.errors import ResourceError, SecurityError

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
PRIVATE_MODE = 0o700

_PREFIX = "runner-"
_NAME = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}")


class PrivateDirectory:
    """A new private directory, locked by this process. A context manager; it contains files only.

    in_memory: whether arenas in it are in memory; otherwise a warning is logged.
    """

    def __init__(self, path: Path, lock: int, in_memory: bool) -> None:
        self.path = path
        self.in_memory = in_memory
        self._lock = lock

    @classmethod
    def create(cls, parent: Path | None = None) -> "PrivateDirectory":
        """Create a directory in ``parent``, by default in shared memory or else in the temporary directory.

        Directories of dead runs of this user are removed. Raises ResourceError if none can be created.
        """
        parent = parent or _default_parent()
        try:
            remove_abandoned(parent)
            while True:
                path = parent / f"{_PREFIX}{secrets.token_hex(8)}"
                path.mkdir(mode=PRIVATE_MODE)
                lock = _lock(path)
                if lock is not None:
                    return cls(path, lock, in_memory=_is_memory(parent))
        except OSError as error:
            raise ResourceError(
                f"no private directory for sockets and shared memory in {parent}: {error.strerror}; "
                "it must be writable and have room"
            ) from error

    def close(self) -> None:
        """Remove the directory with its files and release the lock."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> "PrivateDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
    """Remove the directories in ``parent`` that killed runs of this user have left."""
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
    if _is_memory(SHARED_MEMORY):
        return SHARED_MEMORY
    parent = Path(tempfile.gettempdir())
    log.warning("%s cannot be used: tensors between workers go through files in %s", SHARED_MEMORY, parent)
    return parent


def _is_memory(parent: Path) -> bool:
    return parent == SHARED_MEMORY and parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)


def _lock(path: Path) -> int | None:
    """Lock the directory and return the descriptor; None if another process has locked or removed it.

    Between mkdir and the lock another run may remove the directory as abandoned. The path then no longer refers to the
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
        pass  # Locked by a living run, or removed since: either way it is not ours.
    os.close(lock)
    return None


def _remove(path: Path) -> None:
    """Remove a directory without subdirectories; other processes may remove its files at the same time."""
    for entry in os.scandir(path):
        Path(entry.path).unlink(missing_ok=True)
    path.rmdir()
