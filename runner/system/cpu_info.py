"""Facts about the CPU, as the system reports them."""

from __future__ import annotations

from pathlib import Path

BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
"""Instructions that multiply bfloat16; any of them will do."""

_CPUINFO = Path("/proc/cpuinfo")


def facts(path: Path = _CPUINFO) -> dict[str, str]:
    """The first CPU's lines of a cpuinfo file; empty on systems without one."""
    if not path.is_file():
        return {}
    first = path.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def flags() -> frozenset[str]:
    """Names of the instructions that the CPU has beyond the basic ones; empty where nobody tells."""
    return frozenset(facts().get("flags", "").split())


def bfloat16_flags() -> list[str]:
    """The instructions for bfloat16 that the CPU has."""
    return [flag for flag in BFLOAT16_FLAGS if flag in flags()]
