"""The measurement of a store that fails: what is compared with what, and that a point that is missing shows."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.experiments import configuration
from benchmarks.tracking import TRAINING, Result, Window, _read, document
from runner.tracking import MetricsLog


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of twenty steps, of 10 ms until time 100.1 and then of 20 ms; the store lacks a point and repeats one."""
    (tmp_path / "run").mkdir()
    with MetricsLog(tmp_path / "run" / "metrics.jsonl") as log:
        for step in range(20):
            time_s = 100 + 0.01 * step + 0.01 * max(0, step - 10)
            log.append(step, {"train/loss": 1.0}, time_s)
    points = [(step, 0) for step in range(20) if step != 7] + [(3, 1)]
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection, connection:
        connection.execute("CREATE TABLE metrics (key, step, timestamp)")
        connection.executemany("INSERT INTO metrics VALUES ('train/loss', ?, ?)", points)
        connection.execute("INSERT INTO metrics VALUES ('system/cpu_utilization_percentage', 3, 0)")
    return tmp_path


def test_windows_are_compared_in_pairs_and_the_store_with_what_was_logged(folder: Path) -> None:
    result = Result("a store", [Window(100, 100.1), Window(100.1, 101)], status="stopped as asked")
    _read(result, folder)
    assert result.medians == pytest.approx([0.01, 0.02])
    assert result.ratios() == pytest.approx([2.0])
    assert (result.points, result.missing, result.repeated) == (20, 1, 1)
    text = document([result], 60, "x y")
    assert "| a store | 1 | 19 | 10.00 | 20.00 | 2.000 | 2.000-2.000 | stopped as asked | 20 | 1 | 1 |" in text
    assert "- command: `x y`" in text
    assert "windows of 60 s" in text


def test_what_is_measured_can_be_configured() -> None:
    assert configuration(TRAINING).train.log_every == 1


def test_the_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["tracking", "--help"])
    assert "python -m benchmarks tracking" in capsys.readouterr().out
