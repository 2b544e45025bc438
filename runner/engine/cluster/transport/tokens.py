"""The token of a run: a secret that a process must know to be admitted.

It is passed in a file of mode 0600, never in arguments or the environment, which other processes can read. There is one
file per reader, which removes it after reading, so a second reader finds no file. The file of a worker that never
started is removed with the private directory.
"""

import os
import re
import secrets
import stat
from pathlib import Path

from runner.errors import SecurityError

_TOKEN = re.compile(r"[0-9a-f]{64}")


def new_token() -> str:
    """Return 256 fresh random bits as 64 hexadecimal digits."""
    return secrets.token_hex(32)


def write_token(directory: Path, reader: str, token: str) -> Path:
    """Write the token for one reader, such as ``worker-0``, and return the file; it must not exist yet."""
    path = directory / f"token-{reader}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token)
    return path


def read_token(path: Path) -> str:
    """Return the token in ``path`` and remove the file.

    Raises SecurityError unless it is a regular file that only this user can read and contains exactly a token.
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
