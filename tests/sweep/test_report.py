"""The tracking record of a sweep is ended after its last job, with the status of its jobs."""

import os
from pathlib import Path
from typing import Any

import pytest

from runner.cli import main
from runner.errors import DirectoryInUseError, NumericError
from runner.sweep.locks import job_lock, sweep_lock
from runner.sweep.report import end_late, recorded_sweeps
from runner.tracking.mlflow_tracker import SPOOL_FILE
from runner.tracking.origin import ORIGIN_FILE, Origin
from runner.tracking.records import End, Tags
from runner.tracking.spool import Spool
from tests.fake_training import Call, FakeTraining
from tests.tracking.recorded import a_run

ADDRESS = "http://127.0.0.1:9"


Ended = list[tuple[Any, ...]]
"""With what the record of the sweep was ended, each time."""


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Ended:
    calls: Ended = []
    monkeypatch.setattr("runner.sweep.report.end_parent", lambda *arguments: calls.append(arguments))
    return calls


@pytest.fixture
def sweep(fake_training: FakeTraining, folder: Path) -> Path:
    """A recorded sweep of two jobs, of which the second failed and ended 12.5 s after the epoch."""

    def record(call: Call) -> None:
        call.run_dir.mkdir(exist_ok=True)
        (call.run_dir / "config.yaml").write_text("tracking: {uri: null}")
        Origin.begun(ADDRESS, "mine", a_run(call.run_dir))
        if call.config.seed == 2:
            raise NumericError("the loss is nan")

    fake_training.act = record
    assert main(["-m", "tracking=none", "hydra.sweep.dir=sweep", "seed=1,2"]) == 1
    directory = folder / "sweep"
    (directory / "sweep.json").write_text("{}")
    os.utime(directory / "0" / "summary.json", (1, 11))
    os.utime(directory / "1" / "failure.json", (1, 12.5))
    return directory


def test_it_ends_as_its_jobs_did_with_the_tables(sweep: Path, ended: Ended) -> None:
    (sweep / "jobs.csv").unlink()
    end_late(sweep)
    ((uri, experiment, directory, end, files, description),) = ended
    assert (uri, experiment, directory, end) == (ADDRESS, "mine", sweep, End("failed", 12_500))
    assert files == [sweep / "jobs.csv", sweep / "seeds.csv", sweep / "jobs.md"]
    assert files[0].exists()
    assert "the loss is nan" in description


def test_with_a_job_that_did_not_end_it_was_interrupted(sweep: Path, ended: Ended) -> None:
    (sweep / "1" / "failure.json").unlink()
    end_late(sweep)
    assert [end for _, _, _, end, _, _ in ended] == [End("interrupted", 11_000)]


def test_while_it_or_a_job_of_it_is_running_it_is_left_alone(sweep: Path, ended: Ended) -> None:
    with job_lock(sweep / "0", on_wait=lambda: None):
        end_late(sweep)
    with sweep_lock(sweep), pytest.raises(DirectoryInUseError, match="is running"):
        end_late(sweep)
    assert ended == []


def test_a_sweep_is_found_from_its_jobs_and_once(sweep: Path) -> None:
    assert recorded_sweeps([sweep, sweep / "0", sweep / "1", sweep.parent]) == [sweep]
    (sweep / "sweep.json").unlink()
    assert recorded_sweeps([sweep]) == []


def test_sync_ends_the_record_and_reports_failures(
    sweep: Path, ended: Ended, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sync", "sweep"]) == 0
    assert len(ended) == 1
    Spool(sweep / "1" / SPOOL_FILE).append([Tags({"a": "b"})])
    (sweep / "1" / ORIGIN_FILE).unlink()
    assert main(["sync", "sweep"]) == 1
    assert len(ended) == 1, "a job of it could not be brought over"
    (sweep / "1" / SPOOL_FILE).unlink()
    Origin.begun("http://me:hunter2@host", "mine", a_run(sweep / "0"))
    assert main(["sync", "sweep/1"]) == 1
    assert f"warning: the tracking record of the sweep in {sweep} could not be ended (" in capsys.readouterr().err
