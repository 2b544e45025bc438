"""The benchmark of the LSTM language model asks for the frameworks that it needs, and prints the ratios to them."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import language
from benchmarks.environments import python_of


def test_a_missing_framework_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(language, "python_of", lambda name: python_of(name, tmp_path))
    monkeypatch.setattr(sys, "argv", ["language", "--peers", "JAX"])
    with pytest.raises(SystemExit):
        language.main()
    assert "not installed: run make bench-peers ARGS=jax" in capsys.readouterr().err


def test_medians_after_the_first_steps_are_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = {"runner": "9 9 9 0.25 0.5 9", "PyTorch": "9 9 9 2 1 1"}

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, printed["runner" if "--ours" in command else "PyTorch"])

    monkeypatch.setattr(language, "python_of", lambda name: Path(sys.executable))
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["language", "--peers", "PyTorch", "--threads", "1"])
    language.main()
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "runner 500.0 ms a step, 1,400 words/s",
        "PyTorch 1000.0 ms a step, 700 words/s, runner / PyTorch: 0.50",
    ]
