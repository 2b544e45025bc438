"""Durable writes, safe reads of regular files, locks, and the folder for caches.

If the operating system refuses an operation, these functions raise ``OSError``; callers replace it by an error that
names the purpose of the file, for example with :func:`writing`.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from runner.errors import DataError, ResourceError, SecurityError

# Without O_NONBLOCK, opening a FIFO that has no writer would wait forever.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC  # flags for os.open of a new file


def read_regular(path: Path, limit: int, directory: int | None = None, *, private: bool = False) -> bytes:
    """Read a regular file; if it is longer than ``limit`` bytes, return the first ``limit`` + 1 bytes.

    directory: descriptor of the folder from which a relative ``path`` starts. private: whether only this user may be
    able to change the file. Raises SecurityError if ``path`` is not a regular file, or not private. A symbolic link is
    not accepted either, because it could lead to any file.
    """
    try:
        descriptor = os.open(path, _READ, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SecurityError(f"{path} is a symbolic link: expected a regular file") from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SecurityError(f"{path} is not a regular file")
        if private and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
            raise SecurityError(f"{path} can be changed by another user: expected a file of user {os.geteuid()}")
        with open(descriptor, "rb", closefd=False) as file:
            # read() allocates the requested size immediately, so request at most one byte more than the file has.
            return file.read(min(status.st_size, limit) + 1)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file or a link to one; raises DataError for a folder, a device or a FIFO, OSError for a socket."""
    descriptor = os.open(path, _READ & ~os.O_NOFOLLOW)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder"}
    raise DataError(f"{path} is {kinds.get(stat.S_IFMT(mode), 'a device')}: expected a regular file")


@contextmanager
def writing(what: str, advice: str) -> Iterator[None]:
    """Turn an OSError in the block into a ResourceError with the name of the file, the reason and the advice."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror} ({error.filename})" if error.filename else error.strerror or error
        raise ResourceError(f"cannot write {what}: {reason}; {advice}") from error


def take_lock(file: int | IO[Any], *, shared: bool = False) -> bool:
    """Lock an open file until it is closed or this process ends; return False if the file is already locked.

    shared: whether other shared locks are allowed.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_durably(path: Path, payload: bytes, mode: int = 0o666) -> None:
    """Create the file ``path`` and flush its content ``payload``, but not its directory entry, to the disk.

    mode: permissions, reduced by the umask. Raises FileExistsError if the file exists, OSError if the disk is full.
    """
    with open(os.open(path, CREATE, mode), "wb") as file:
        if payload:
            os.posix_fallocate(file.fileno(), 0, len(payload))
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, payload: bytes, mode: int = 0o666) -> None:
    """Replace the content of ``path`` atomically: readers find the old or the new content, even after a crash.

    mode: see :func:`write_durably`. The caller must be the only writer.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    write_durably(temporary, payload, mode)
    os.rename(temporary, path)
    fsync_directory(path.parent)


def create_directory(path: Path) -> None:
    """Create a directory with its parents, flushed to the disk, if missing; raises NotADirectoryError for a file."""
    if path.is_dir():
        return
    create_directory(path.parent)
    try:
        path.mkdir(exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Flush the entries of a directory to the disk, which makes a rename in the directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_cache_folder() -> Path:
    """Return the folder ``runner`` in the user's cache folder (XDG base directory specification).

    Raises RuntimeError if no home folder is known.
    """
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The specification requires that a relative path in the variable is ignored.
    base = configured if configured.is_absolute() else Path.home() / ".cache"
    return base / "runner"
