"""A cache of machine code of our sources, so that only the first run of a network compiles.

The name of a file is a hash of the source, the options and the version of the compiler. A file starts with a digest of
its code. Files may be deleted at any time.
"""

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path

from runner.kernels.gpu import nvrtc

log = logging.getLogger(__name__)

_DIGEST_BYTES = hashlib.sha256().digest_size


class KeptCode:
    """A compiler with a cache. folder: created at its first use; None disables the cache."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def compiled(self, source: str, capability: int) -> bytes:
        """Return the machine code of a source for a compute capability; raises the errors of :func:`nvrtc.compiled`.

        Damaged files are replaced. If files cannot be written, the cache is disabled. Both are logged.
        """
        if self._folder is None:
            return nvrtc.compiled(source, capability)
        path = self._folder / f"{_name(source, capability)}.cubin"
        code = _read(path)
        if code is None:
            code = nvrtc.compiled(source, capability)
            self._keep(path, code)
        return code

    def _keep(self, path: Path, code: bytes) -> None:
        """Write to a temporary name and rename it, so that other processes never see a partial file."""
        own = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            own.write_bytes(hashlib.sha256(code).digest() + code)
            own.replace(path)
        except OSError as error:
            log.warning("compiled GPU code cannot be cached, so every run compiles it: %s", error)
            self._folder = None
            with suppress(OSError):  # A full disk leaves a partial file.
                own.unlink()


def _name(source: str, capability: int) -> str:
    told = [source, *nvrtc.options(source, capability), nvrtc.version()]
    return hashlib.sha256("\0".join(told).encode()).hexdigest()


def _read(path: Path) -> bytes | None:
    """Return the code of a file, or None if it is missing or damaged."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("cached GPU code cannot be read and is compiled again: %s", error)
        return None
    digest, code = found[:_DIGEST_BYTES], found[_DIGEST_BYTES:]
    if hashlib.sha256(code).digest() != digest:
        log.warning("%s is damaged and is compiled again", path)
        return None
    return code
