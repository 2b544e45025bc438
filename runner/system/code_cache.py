"""A cache of compiled code in a folder, which later runs of the same user load instead of compiling again.

Loaded code is executed, so code is read only from files that no other user could have written, and only if a digest
shows that the file is whole. Files may be deleted at any time.
"""

import hashlib
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.errors import SecurityError
from runner.system.files import CREATE, read_regular

log = logging.getLogger(__name__)

LIMIT_BYTES = 64 << 20

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIGEST_BYTES = hashlib.sha256().digest_size


def code_name(*parts: str) -> str:
    """Return the name of the code that ``parts``, such as the source and the compiler's version, determine."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class CodeCache:
    """Compiled code by name, in a folder of mode 0700. Threads and processes may read and write at the same time.

    If files cannot be read or written, the first reason is logged, and the code must be compiled.
    """

    def __init__(self, folder: Path, level: int = logging.DEBUG, limit: int = LIMIT_BYTES) -> None:
        """Use a folder, which the first write creates.

        level: of log messages. limit: bytes of all files, above which the least recently used ones are removed.
        """
        self._folder = folder
        self._level = level
        self._limit = limit
        self._reported = False

    def read(self, name: str) -> bytes | None:
        """Return the code of this name, or None if it is missing, damaged, or can be changed by another user."""
        try:
            with _opened(self._folder) as folder:
                content = read_regular(Path(name), self._limit, folder, private=True)
                with suppress(OSError):  # A file on a read-only disk can be used, too.
                    os.utime(name, dir_fd=folder)
        except FileNotFoundError:
            return None
        except (OSError, SecurityError) as error:
            self._report(error)
            return None
        digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if digest != _digest(name, code):
            log.log(self._level, "%s is damaged and is compiled again", self._folder / name)
            return None
        return code

    def write(self, name: str, code: bytes) -> None:
        """Store code that :meth:`read` did not find."""
        try:
            _create(self._folder)
            with _opened(self._folder) as folder:
                _replace(folder, name, _digest(name, code) + code)
                _trim(folder, self._limit)
        except (OSError, SecurityError) as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        if not self._reported:
            self._reported = True
            log.log(self._level, "the cache of compiled code was not used: %s", error)


def _digest(name: str, code: bytes) -> bytes:
    """Return the digest of a file, which covers the name, so that code under another name is not loaded."""
    return hashlib.sha256(name.encode() + code).digest()


def _create(path: Path) -> None:
    """Create a folder and, if missing, two of its parents: the user's cache folder, but not the home folder."""
    for folder in (path.parent.parent, path.parent, path):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a folder and return its descriptor. Raises SecurityError if another user owns it or has access to it."""
    descriptor = os.open(path, _FOLDER)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise SecurityError(
                f"{path}: mode {status.st_mode & 0o777:04o} of user {status.st_uid}, "
                f"expected 0700 of user {os.geteuid()}; delete the folder"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _replace(folder: int, name: str, content: bytes) -> None:
    """Write to a temporary file and rename it, so that other processes never read a partial file.

    The file is not flushed to the disk: its digest shows if a crash of the machine has damaged it.
    """
    temporary = f"{secrets.token_hex(8)}.tmp"
    try:
        with open(os.open(temporary, CREATE, 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)


def _trim(folder: int, limit: int) -> None:
    """Remove the files that were used least recently, until at most ``limit`` bytes are left."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:  # Other processes remove files, too.
        files = [(entry.stat(follow_symlinks=False), entry.name) for entry in entries]
        excess = sum(status.st_size for status, _ in files) - limit
        for status, name in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if excess <= 0:
                break
            os.unlink(name, dir_fd=folder)
            excess -= status.st_size
