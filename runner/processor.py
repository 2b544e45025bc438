"""What the system tells of the processor, and which precisions it computes in."""

from __future__ import annotations

from pathlib import Path

from runner.errors import ConfigError

BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
"""Instructions that multiply bfloat16; any of them will do."""

_CPUINFO = Path("/proc/cpuinfo")


def facts(path: Path = _CPUINFO) -> dict[str, str]:
    """The first processor's lines of a cpuinfo file; empty on systems without one."""
    if not path.is_file():
        return {}
    first = path.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def flags() -> frozenset[str]:
    """Names of the instructions that the processor has beyond the basic ones; empty where nobody tells."""
    return frozenset(facts().get("flags", "").split())


def bfloat16_flags() -> list[str]:
    """The instructions for bfloat16 that the processor has."""
    return [flag for flag in BFLOAT16_FLAGS if flag in flags()]


def require_precision(precision: str) -> None:
    """Raise ConfigError where a run in ``precision`` would be slower than in float32, for want of instructions."""
    if precision == "bfloat16" and not bfloat16_flags():
        raise ConfigError(
            f"precision=bfloat16: this processor has none of the flags {', '.join(BFLOAT16_FLAGS)}, so bfloat16 "
            "would be slower than float32; use precision=float32, or a processor with one of them"
        )
