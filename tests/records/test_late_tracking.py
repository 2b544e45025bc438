"""Runs with pending tracking records, and the report of writing them."""

import os
from pathlib import Path

import pytest

from runner.errors import NumericError
from runner.records.late_tracking import BroughtOver, bring_over, late_runs
from runner.records.run_directory import SUMMARY_FILE, RunDirectory
from runner.sweep.outcome import failure_summary
from runner.tracking.mlflow_tracker import SPOOL_FILE
from runner.tracking.records import End
from runner.tracking.replay import Replay
from runner.tracking.writer import StoreUnavailableError


class FakeReplay(Replay):
    """Writes three records of each run except those in ``failing``."""

    def __init__(self, failing: dict[str, Exception] | None = None) -> None:
        super().__init__()
        self.asked: list[tuple[str, str | None]] = []
        self.ends: list[End | None] = []
        self._failing = failing or {}

    def run(self, run_dir: Path, uri: str | None, end: End | None) -> int:
        self.asked.append((run_dir.name, uri))
        self.ends.append(end)
        if run_dir.name in self._failing:
            raise self._failing[run_dir.name]
        return 3


def late_run(path: Path, configuration: str = "tracking: {uri: null}\n") -> Path:
    path.mkdir(parents=True)
    (path / SPOOL_FILE).write_text("")
    (path / "config.yaml").write_text(configuration)
    return path


def test_runs_with_a_spool_are_found_wherever_they_lie(tmp_path: Path) -> None:
    runs = [late_run(tmp_path / "a"), late_run(tmp_path / "b" / "0")]
    (tmp_path / "c").mkdir()
    assert late_runs(tmp_path) == runs
    assert late_runs(runs[0]) == runs[:1]


def test_an_error_of_one_run_does_not_stop_the_others(tmp_path: Path) -> None:
    away, full = StoreUnavailableError("no answer"), OSError("disk full")
    replay = FakeReplay({"0": away, "1": full, "3": away})
    runs = [late_run(tmp_path / str(number)) for number in range(4)] + [late_run(tmp_path / "4", "[")]
    outcome = bring_over(runs, replay)
    assert outcome.records == {runs[2]: 3}
    *reasons, damaged = outcome.left.items()
    assert reasons == [("no answer", [runs[0], runs[3]]), ("disk full", [runs[1]])]
    assert "not plain YAML" in damaged[0]


def test_a_run_that_is_still_running_is_left_alone(tmp_path: Path) -> None:
    replay = FakeReplay()
    run = late_run(tmp_path / "run")
    with RunDirectory.open(run, resume=False) as directory:
        directory.store_configuration(b"tracking: {uri: null}\n")
        assert bring_over([run], replay) == BroughtOver(running=[run])
    assert replay.asked == []
    assert bring_over([run], replay) == BroughtOver({run: 3})


def test_no_run_starts_while_its_records_are_brought_over(tmp_path: Path) -> None:
    run = late_run(tmp_path / "run")

    class Starting(FakeReplay):
        def run(self, run_dir: Path, uri: str | None, end: End | None) -> int:
            with RunDirectory.open(run_dir, resume=False):
                return super().run(run_dir, uri, end)

    assert bring_over([run], Starting()) == BroughtOver(running=[run])


@pytest.mark.parametrize(
    ("configuration", "uri"), [("tracking: {uri: 'http://a:b@c'}", "http://a:b@c"), ("tracking: 1", None), ("{}", None)]
)
def test_the_store_of_the_configuration_is_read_without_the_rest_of_it(
    tmp_path: Path, configuration: str, uri: str | None
) -> None:
    replay = FakeReplay()
    bring_over([late_run(tmp_path / "run", configuration)], replay)
    assert replay.asked == [("run", uri)]


def test_the_end_of_a_run_is_that_of_its_summary(tmp_path: Path) -> None:
    runs = [late_run(tmp_path / name) for name in ("damaged", "failed", "killed")]
    (runs[0] / SUMMARY_FILE).write_text("{")
    failure_summary(NumericError("the loss is nan"), runs[1], []).write(runs[1] / SUMMARY_FILE)
    os.utime(runs[1] / SUMMARY_FILE, (1, 12.5))
    replay = FakeReplay()
    outcome = bring_over(runs, replay)
    assert replay.ends == [End("failed", 12_500), None]
    ((why, left),) = outcome.left.items()
    assert left == runs[:1]
    assert "summary.json: cannot be read as JSON" in why


def test_pending_records_are_listed_with_the_command_to_write_them() -> None:
    outcome = BroughtOver({Path("/s/0"): 5, Path("/s/1"): 2}, [Path("/s/2")], {"no answer": [Path("/s/3")]})
    assert list(outcome.lines([Path("/s"), Path("/a b")])) == [
        "written to the tracking store: 7 records of 2 runs",
        "skipped, still running: /s/2",
        "warning: tracking records of 1 run are still pending (no answer): /s/3",
        "warning: write them with `runner sync /s '/a b'`",
    ]
    assert list(BroughtOver().lines([Path("/s")])) == []
