"""``runner sync``: waiting records are written, and the exit code reports whether some still wait."""

from pathlib import Path

import pytest

from runner.cli import main
from runner.records.run_directory import RunDirectory
from runner.tracking.mlflow_tracker import SPOOL_FILE
from runner.tracking.records import Tags
from runner.tracking.replay import Replay
from runner.tracking.spool import Spool
from tests.refusal import refused

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def left(folder: Path) -> Path:
    """The directory of a run with a record that waits, and nothing that says where to."""
    run = folder / "outputs" / "run"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("tracking: {uri: null}\n")
    Spool(run / SPOOL_FILE).append([Tags({"a": "b"})])
    return run


def test_each_run_is_brought_over_once(left: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    asked: list[Path] = []
    monkeypatch.setattr(Replay, "run", lambda self, run_dir, uri, end: asked.append(run_dir) or 1)
    assert main(["sync", "outputs", "outputs/run"]) == 0
    assert asked == [left]
    assert capsys.readouterr().out == "written to the tracking store: 1 record of 1 run\n"


def test_records_that_could_not_be_written_keep_waiting(left: Path, capsys: Capture):
    assert main(["sync", "outputs"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"`runner resume={left}` writes its records): {left}" in err
    assert err.endswith(f"warning: write them with `runner sync {left.parent}`\n")
    assert (left / SPOOL_FILE).exists()


def test_a_run_that_is_running_is_no_failure(left: Path, capsys: Capture):
    with RunDirectory.open(left, resume=False):
        assert main(["sync", "outputs"]) == 0
    assert capsys.readouterr().out == f"skipped, still running: {left}\n"


def test_without_waiting_records_nothing_is_done(folder: Path, capsys: Capture):
    assert main(["sync", "."]) == 0
    assert capsys.readouterr().out == "no tracking records wait there\n"
    assert list(folder.iterdir()) == []


def test_a_missing_directory_is_refused(folder: Path, capsys: Capture):
    assert "nowhere: no such directory; expected that of a run or a sweep" in refused(["sync", "nowhere"], capsys)
