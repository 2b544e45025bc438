"""Compilation of CUDA C++ sources by the run-time compiler NVRTC; no GPU is needed."""

from typing import Any

CONTRACT = "// fmad"
"""A line that marks sources whose products and sums may be contracted."""


class CompileError(RuntimeError):
    """A source does not compile for this GPU; the text says where."""


def compiled(source: str, capability: int) -> bytes:
    """Return the machine code of a source for a compute capability such as 90; raises CompileError with NVRTC's log."""
    from cupy_backends.cuda.libs import nvrtc

    supported = nvrtc.getSupportedArchs()
    if capability not in supported:
        raise CompileError(f"NVRTC {version()} compiles for compute capabilities {supported}, the GPU has {capability}")
    program = nvrtc.createProgram(source, "runner.cu", (), ())
    try:
        return _compile(nvrtc, program, options(source, capability))
    finally:
        nvrtc.destroyProgram(program)


def version() -> str:
    """Return the version of the compiler, such as "13.5"."""
    from cupy_backends.cuda.libs import nvrtc

    return ".".join(map(str, nvrtc.getVersion()))


def options(source: str, capability: int) -> tuple[str, ...]:
    """Return the options of the compiler: as on the CPU, every operation is rounded unless the source is marked."""
    contract = CONTRACT in source.splitlines()
    return f"-arch=sm_{capability}", "-std=c++17", f"-fmad={'true' if contract else 'false'}"


def _compile(nvrtc: Any, program: int, told: tuple[str, ...]) -> bytes:
    try:
        nvrtc.compileProgram(program, told)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise CompileError(f"a CUDA source does not compile with {' '.join(told)}: {error}\n{log}") from error
    code: bytes = nvrtc.getCUBIN(program)
    return code
