"""Facts about the CPU that are read from the system."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.system import cpu_info


def test_the_lines_of_the_first_cpu_are_read(tmp_path: Path):
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: A CPU\nflags\t\t: avx2 amx_bf16\n\nmodel name\t: another\n")
    assert cpu_info.facts(info) == {"model name": "A CPU", "flags": "avx2 amx_bf16"}
    assert cpu_info.facts(tmp_path / "absent") == {}


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_one_of_the_instructions_for_bfloat16_is_enough(flag: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu_info, "flags", lambda: frozenset({"avx2", flag}))
    assert cpu_info.bfloat16_flags() == [flag]
