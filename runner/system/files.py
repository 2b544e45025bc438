"""Files that survive a crash and a hostile neighbour: durable writes, reads that follow no link.

These functions raise plain ``OSError`` where the machine refuses; the caller knows what the file meant and
says so in its own error.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from runner.errors import DataError, SecurityError

# O_NONBLOCK: opening a FIFO that nobody writes to must fail the check below, not wait for ever.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read_regular(path: Path, limit: int, directory: int | None = None) -> bytes:
    """Read a whole regular file of at most ``limit`` bytes; a longer one comes back cut at ``limit`` + 1.

    ``directory`` is a descriptor that a relative ``path`` starts from. Raises SecurityError when the file
    is a symbolic link, a device, a pipe, a socket or a directory, because each can lead the read elsewhere.
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
        with open(descriptor, "rb", closefd=False) as file:
            # read() allocates what it is asked for at once, so ask for no more than there is.
            return file.read(min(status.st_size, limit) + 1)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, through symbolic links.

    Raises DataError when the path is a FIFO, a device, a socket or a directory, because reading one may never end;
    OSError when the file cannot be opened.
    """
    descriptor = os.open(path, _READ & ~os.O_NOFOLLOW)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
    raise DataError(f"{path} is {kinds.get(stat.S_IFMT(mode), 'a device')}: expected a regular file")


def write_durably(path: Path, payload: bytes, mode: int = 0o666) -> None:
    """Create ``path`` with ``payload``, allocated before and on the disk after; the name is not yet durable.

    mode: permissions, less those that the process masks. Raises FileExistsError when the name is taken, OSError
    when the space is not there or a write fails.
    """
    with open(os.open(path, _CREATE, mode), "wb") as file:
        if payload:
            os.posix_fallocate(file.fileno(), 0, len(payload))
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, payload: bytes, mode: int = 0o666) -> None:
    """Give ``path`` the content ``payload`` in one step: readers and crashes meet the old file or the new.

    mode: as of :func:`write_durably`. The caller must be the only writer. Raises OSError when the machine refuses.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    write_durably(temporary, payload, mode)
    os.rename(temporary, path)
    fsync_directory(path.parent)


def create_directory(path: Path) -> None:
    """Create a directory, with its parents, unless it is there; its own name is then durable.

    Raises NotADirectoryError when something else has the name, OSError when the machine refuses.
    """
    if path.is_dir():
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Put the names inside a directory on the disk; a rename counts only after this."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
