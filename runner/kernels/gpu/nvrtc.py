"""Compilation of CUDA C++ sources by the run-time compiler NVRTC, which needs no GPU, and a cache of machine code.

With the cache, only the first run of a network compiles.
"""

import logging
from pathlib import Path

from runner.system.code_cache import CodeCache, code_name

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
        self._cache = CodeCache(folder, logging.WARNING) if folder else None

    def compiled(self, source: str, capability: int) -> bytes:
        """Return the machine code of a source for a compute capability; raises the errors of :func:`compiled`."""
        if self._cache is None:
            return compiled(source, capability)
        name = code_name(source, *options(source, capability), version())
        code = self._cache.read(name)
        if code is None:
            code = compiled(source, capability)
            self._cache.write(name, code)
        return code
