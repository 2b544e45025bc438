"""Compilation of CUDA C++ sources by the run-time compiler NVRTC, which needs no GPU, and a cache of machine code.

With the cache, only the first run of a network compiles. The name of a cached file is a hash of the source, the options
and the version of the compiler. A file starts with a digest of its code. Files may be deleted at any time.
"""

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_DIGEST_BYTES = hashlib.sha256().digest_size

CONTRACT = "// fmad"
"""A line that marks sources whose products and sums may be contracted to fused multiply-adds."""


class CompileError(RuntimeError):
    """A source does not compile for this GPU; the message contains the location."""


def compiled(source: str, capability: int) -> bytes:
    """Return the machine code of a source for a compute capability such as 90; raises CompileError with NVRTC's log."""
    from cupy_backends.cuda.libs import nvrtc

    supported = nvrtc.getSupportedArchs()
    if capability not in supported:
        raise CompileError(f"NVRTC {version()} compiles for compute capabilities {supported}, the GPU has {capability}")
    given = options(source, capability)
    program = nvrtc.createProgram(source, "runner.cu", (), ())
    try:
        nvrtc.compileProgram(program, given)
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise CompileError(f"a CUDA source does not compile with {' '.join(given)}: {error}\n{log}") from error
    finally:
        nvrtc.destroyProgram(program)


def version() -> str:
    """Return the version of the compiler, such as "13.5"."""
    from cupy_backends.cuda.libs import nvrtc

    return ".".join(map(str, nvrtc.getVersion()))


def options(source: str, capability: int) -> tuple[str, ...]:
    """Return the options: each operation is rounded separately, as on the CPU, unless the source contains CONTRACT."""
    contract = CONTRACT in source.splitlines()
    return f"-arch=sm_{capability}", "-std=c++17", f"-fmad={'true' if contract else 'false'}"


class CachingCompiler:
    """A compiler with a cache. folder: the cache, created when first used; None disables the cache."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def compiled(self, source: str, capability: int) -> bytes:
        """Return the machine code of a source for a compute capability; raises the errors of :func:`compiled`.

        Damaged files are replaced. If files cannot be written, the cache is disabled. Both events are logged.
        """
        if self._folder is None:
            return compiled(source, capability)
        path = self._folder / f"{_name(source, capability)}.cubin"
        code = _read(path)
        if code is None:
            code = compiled(source, capability)
            self._store(path, code)
        return code

    def _store(self, path: Path, code: bytes) -> None:
        """Write the code to a temporary file and rename it, so that other processes never read a partial file."""
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
    parts = [source, *options(source, capability), version()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


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
