"""The command: what it prints, writes and returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import installing, tables
from benchmarks.options import Options
from benchmarks.process import SubjectError
from benchmarks.report import Report
from runner.errors import ConfigError
from tests.benchmarks.made import case, subject


def measured(name: str, options: Options, report: Report) -> None:
    """Stands in for a measurement: AlexNet succeeds, the others fail."""
    if name == "alexnet":
        report.comparisons.append(case(subject("runner", [12]), case=name))
    elif name == "mlp":
        raise ConfigError("model.hidden: no such key")
    else:
        raise SubjectError("no answer within 1800 s")


@pytest.fixture
def _faked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_measure", measured)


@pytest.mark.usefixtures("_faked")
def test_tables_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["alexnet", "--output", str(tmp_path / "table.md"), "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert "| alexnet | float32 | 12 |" in printed
    assert "1 threads used" in printed
    assert printed == (tmp_path / "table.md").read_text() + "\n"


@pytest.mark.usefixtures("_faked")
def test_one_case_that_fails_does_not_keep_the_others_from_being_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["mlp", "lenet_b1", "alexnet"]) == 1
    printed = capsys.readouterr().out
    assert "- mlp: model.hidden: no such key" in printed
    assert "- lenet_b1: no answer within 1800 s" in printed
    assert "| alexnet | float32 | 12 |" in printed


def test_peers_are_installed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(installing, "install", asked.append)
    assert command.main(["peers", "jax"]) == 0
    assert asked == [("jax",)]
