"""What is read of the processor, and runs it cannot do well."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import processor
from runner.errors import ConfigError
from runner.records.run_directory import RunDirectory
from runner.training.build import build, open_session
from tests.small_runs import small_config


def test_the_lines_of_the_first_processor_are_read(tmp_path: Path):
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: A CPU\nflags\t\t: avx2 amx_bf16\n\nmodel name\t: another\n")
    assert processor.facts(info) == {"model name": "A CPU", "flags": "avx2 amx_bf16"}
    assert processor.facts(tmp_path / "absent") == {}


def _has(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    monkeypatch.setattr(processor, "flags", lambda: frozenset(flags))


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_one_of_the_instructions_for_bfloat16_is_enough(flag: str, monkeypatch: pytest.MonkeyPatch):
    _has(monkeypatch, "avx2", flag)
    assert processor.bfloat16_flags() == [flag]
    processor.require_precision("bfloat16")


def test_a_run_in_bfloat16_needs_the_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _has(monkeypatch, "avx2", "avx512f")
    experiment = build(small_config("precision=bfloat16"))
    expected = (
        r"precision=bfloat16: this processor has none of the flags avx512_bf16, amx_bf16, .*use precision=float32"
    )
    with (
        RunDirectory.open(tmp_path / "run", resume=False) as directory,
        pytest.raises(ConfigError, match=expected),
        open_session(experiment, directory, check_finite=False),
    ):
        pass


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_other_precisions_run_everywhere(precision: str, monkeypatch: pytest.MonkeyPatch):
    _has(monkeypatch)
    processor.require_precision(precision)
