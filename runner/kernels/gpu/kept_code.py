"""Machine code of our sources, kept in a folder from run to run, so that only the first run of a network compiles.

A file is named by all that decides what the compiler gives: the source, what the compiler is told, and its version. It
begins with a digest of the code behind it. Files may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path

from runner.kernels.gpu import nvrtc

log = logging.getLogger(__name__)

_DIGEST_BYTES = hashlib.sha256().digest_size


class KeptCode:
    """Compiles what is not kept. folder: made when it is first needed; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def compiled(self, source: str, capability: int) -> bytes:
        """The machine code of a source for a compute capability; raises what :func:`nvrtc.compiled` does.

        A file that is damaged is made anew, and where none can be written none is kept; the log says either.
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
        """Whoever looks finds all of the file or none of it, also when two processes make it at once."""
        own = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            own.write_bytes(hashlib.sha256(code).digest() + code)
            own.replace(path)
        except OSError as error:
            log.warning("compiled GPU code cannot be cached, so every run compiles it: %s", error)
            self._folder = None
            with suppress(OSError):  # A disk that is full has a part of it.
                own.unlink()


def _name(source: str, capability: int) -> str:
    told = [source, *nvrtc.options(source, capability), nvrtc.version()]
    return hashlib.sha256("\0".join(told).encode()).hexdigest()


def _read(path: Path) -> bytes | None:
    """The code of a file, None where there is none or it is damaged."""
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
