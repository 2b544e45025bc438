"""The run-time compiler takes our sources; skipped where it is not installed. No card is needed."""

from __future__ import annotations

import re

import pytest

from runner.kernels.gpu import nvrtc, source

pytest.importorskip("cupy", reason="needs the extra gpu")

FILES = sorted(
    path.name.removesuffix(".cu") for path in source.files(source.__name__).iterdir() if path.suffix == ".cu"
)


def aliases(name: str, dtype: str) -> dict[str, str]:
    """Types for the aliases that a source has."""
    text = source.text(name)
    computed = source.computed_in(dtype)
    known = {"T": dtype, "C": computed, "A": computed, "R": dtype, "I": "int32"}
    return {alias: chosen for alias, chosen in known.items() if re.search(rf"\b{alias}\b", text)}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", FILES)
def test_our_sources_compile(name: str, capability: int) -> None:
    for dtype in ("float32", "float64", "bfloat16"):
        assert nvrtc.compiled(source.text(name, **aliases(name, dtype)), capability)[:4] == b"\x7fELF"


def test_a_source_that_does_not_compile_is_told_with_what_the_compiler_says() -> None:
    with pytest.raises(nvrtc.CompileError, match=r'(?s)does not compile with -arch=sm_90 .* "nobody" is undefined'):
        nvrtc.compiled('extern "C" __global__ void wrong() { nobody = 1; }', 90)


def test_a_card_that_is_too_new_is_named() -> None:
    with pytest.raises(nvrtc.CompileError, match=r"NVRTC \d+\.\d+ compiles for .*, the card has 999"):
        nvrtc.compiled("", 999)
