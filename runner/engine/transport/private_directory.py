"""The one directory of a run's sockets, tokens and shared memory: mode 0700, gone when the run is.

File permission is the authentication of ``ipc://`` sockets, so nobody else may enter. The directory lies in
/dev/shm where there is one, so that arenas in it are memory. Its maker holds a lock on it for as long as it
lives; the kernel drops that lock even on ``kill -9``, and the next run removes whatever directory is no
longer locked.
"""

from __future__ import annotations

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
    """A fresh private directory, locked by this process. A context manager; holds files only, no directories.

    ``in_memory`` says whether arenas made here are memory; where they are not, that is also logged.
    """

    def __init__(self, path: Path, lock: int, in_memory: bool) -> None:
        self.path = path
        self.in_memory = in_memory
        self._lock = lock

    @classmethod
    def create(cls, parent: Path | None = None) -> PrivateDirectory:
        """Make a directory in ``parent``, by default in shared memory or else where temporary files go.

        Directories that dead runs of this user left there are removed. Raises ResourceError when none can
        be made.
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
        """Remove the directory with all that is in it, and give up the lock."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> PrivateDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_private(directory: Path) -> None:
    """Raise SecurityError unless ``directory`` is a real directory that is this user's alone."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise SecurityError(f"{directory}: expected a directory, and no symbolic link to one")
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise SecurityError(
            f"{directory}: mode {stat.S_IMODE(status.st_mode):04o} of user {status.st_uid}, "
            f"expected {PRIVATE_MODE:04o} of user {os.geteuid()}"
        )


def remove_abandoned(parent: Path) -> None:
    """Remove the directories in ``parent`` that runs of this user made and did not live to remove."""
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
    """Lock the directory and return the descriptor; None when another process has or had it.

    Between a maker's mkdir and its lock another run may take the directory for abandoned and remove it:
    then the path no longer leads to what was locked, and the maker tries another name.
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
    """Remove a flat directory of which others may be removing files, too."""
    for entry in os.scandir(path):
        Path(entry.path).unlink(missing_ok=True)
    path.rmdir()
