"""The tables of a sweep, by job and over seeds, and the end of the sweep's tracking record."""

import csv
import io
import math
import os
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest

from runner.cli import main
from runner.config.monitor import Monitor
from runner.errors import DirectoryInUseError, NumericError
from runner.records.summary import Failure, Summary
from runner.sweeps.locks import job_lock, sweep_lock
from runner.sweeps.outcome import Outcome
from runner.sweeps.plot import draw_sweep
from runner.sweeps.report import end_late, recorded_sweeps
from runner.sweeps.table import Cell, SweepTable, over_seeds, seeds_table, spread_of, sweep_table, swept_values
from runner.tracking.origin import ORIGIN_FILE, Origin
from runner.tracking.plots import Series
from runner.tracking.records import Tags
from runner.tracking.spool import SPOOL_FILE, Spool
from tests.fake_training import Call
from tests.records.test_summary import SUMMARY
from tests.refusal import Capture
from tests.sweep.tables import copied, run_in
from tests.tracking.recorded import a_run

ACCURACY = Monitor("test/accuracy", highest=True)


def outcome_of(summary: Summary) -> Outcome:
    return Outcome(0, summary.overrides, {}, summary.status, summary)


def _job(lr: str, accuracy: float | None, **changes: object) -> Outcome:
    headline = {} if accuracy is None else {"test/accuracy": accuracy, "test/loss": 1 - accuracy}
    overrides = [f"optimizer.lr={lr}", "+model=mlp"]
    return outcome_of(replace(SUMMARY, overrides=overrides, headline=headline, **changes))


@pytest.fixture
def jobs() -> list[Outcome]:
    failure = Failure("NumericError", "the loss of step 3 is nan;\nlower optimizer.lr | or clip or read the log", 5)
    return [
        _job("10", None, status="failed", error=failure, step_time_s={}),
        _job("0.1", 0.5),
        replace(_job("0.2", 0.9 + 1e-9), number=7, directory="/sweep/7", mlflow_run_id="0123456789ab"),
        _job("0.3", math.nan),
    ]


def column(table: SweepTable, name: str) -> list[Cell]:
    return [row[table.headers.index(name)] for row in table.rows]


def test_the_best_job_comes_first_and_failed_jobs_last(jobs: list[Outcome]) -> None:
    table = sweep_table(jobs, ACCURACY)
    metrics = ("test_accuracy", "test_loss", "step_time_ms")
    assert table.headers == ("job", "optimizer_lr", *metrics, "status", "error", "run_dir", "mlflow_run_id")
    assert column(table, "optimizer_lr") == ["0.2", "0.1", "0.3", "10"]
    assert table.rows[0] == (7, "0.2", 0.9 + 1e-9, 0.1 - 1e-9, 10.0, "finished", "", "/sweep/7", "0123456789ab")
    error = "NumericError: the loss of step 3 is nan; lower optimizer.lr | or clip or read the log"
    assert table.rows[-1] == (0, "10", None, None, None, "failed", error, "", "")


@pytest.mark.parametrize(
    ("metric", "order"), [("train/loss", "21"), ("val/accuracy", "12"), ("test/accuracy", "21"), ("val/loss", "12")]
)
def test_jobs_are_compared_by_the_monitored_metric_and_without_it_by_loss(metric: str, order: str) -> None:
    values = {
        "1": {"train/loss": 0.9, "val/accuracy": 0.8, "test/accuracy": 0.1, "test/loss": 1.0},
        "2": {"train/loss": 0.5, "val/accuracy": 0.1, "test/accuracy": 0.2, "test/loss": 2.0},
    }
    jobs = [outcome_of(replace(SUMMARY, overrides=[f"lr={lr}"], headline=kept)) for lr, kept in values.items()]
    for given in (jobs, jobs[::-1]):
        table = sweep_table(given, Monitor(metric, highest=metric.endswith("accuracy")))
        assert column(table, "lr") == list(order)
        assert table.headers[2] == ("test_accuracy" if metric == "val/loss" else metric.replace("/", "_"))


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_test_split_does_not_decide_between_equal_validation_accuracies(seeds: int) -> None:
    losses = {"1": {"val/loss": 0.2, "test/loss": 0.9}, "2": {"val/loss": 0.3, "test/loss": 0.1}}
    summaries = {lr: replace(SUMMARY, headline={"val/accuracy": 0.8, **losses[lr]}) for lr in ("2", "1")}
    jobs = [
        outcome_of(replace(summary, overrides=[f"lr={lr}", f"seed={seed}"]))
        for seed in range(seeds)
        for lr, summary in summaries.items()
    ]
    monitor = Monitor("val/accuracy", highest=True)
    groups = over_seeds(jobs, monitor)
    ranked = column(sweep_table(jobs, monitor), "lr") if seeds == 1 else [group.swept["lr"] for group in groups]
    assert ranked == ["1", "2"]


def test_a_job_without_a_summary_shows_its_status() -> None:
    not_started = Outcome(0, ["lr=1"], {}, "not started")
    table = sweep_table([not_started, Outcome(1, ["lr=2"], {}, "finished", SUMMARY)], ACCURACY)
    assert column(table, "lr") == ["2", "1"]
    assert column(table, "status") == ["finished", "not started"]


def test_only_keys_that_differ_or_that_some_jobs_have_are_columns(jobs: list[Outcome]) -> None:
    assert swept_values(jobs) == [{"optimizer.lr": lr} for lr in ("10", "0.1", "0.2", "0.3")]
    assert swept_values(jobs[:1]) == [{"optimizer.lr": "10", "model": "mlp"}]
    assert swept_values([]) == []
    jobs = [outcome_of(replace(SUMMARY, overrides=overrides)) for overrides in (["a=1", "b=2"], ["a=1"])]
    assert swept_values(jobs) == [{"b": "2"}, {}]
    assert column(sweep_table(jobs, ACCURACY), "b") == ["2", ""]


def test_files_have_every_cell_in_full(jobs: list[Outcome]) -> None:
    table = sweep_table(jobs, ACCURACY)
    exact = ["" if cell is None else str(cell) for row in table.rows for cell in row]
    assert [cell for row in list(csv.reader(io.StringIO(table.csv())))[1:] for cell in row] == exact
    cells = [cell for row in table.markdown().splitlines()[2:] for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
    assert [cell.strip().replace("\\|", "|") for cell in cells] == exact
    frame = pandas.read_csv(io.StringIO(table.csv()))
    assert frame.test_accuracy[0] == 0.9 + 1e-9
    assert all(name.isidentifier() for name in frame.columns)


def test_printed_columns_are_aligned_and_shortened(jobs: list[Outcome], capsys: Capture) -> None:
    sweep_table(jobs, ACCURACY).print()
    header, _, first, *_, last = capsys.readouterr().out.splitlines()
    assert first.split() == ["7", "0.2", "0.9", "0.1", "10", "finished", "7", "01234567"]
    assert last.endswith("failed    NumericError: the loss of step 3 is nan; lower optimizer....")
    assert header.index("status") == first.index("finished") == last.index("failed")


def test_a_terminal_shows_every_row(jobs: list[Outcome], capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    sweep_table([*jobs, _job("[bold]", 0.95)], ACCURACY).print()
    printed = capsys.readouterr().out
    assert all(lr in printed for lr in ("0.1", "0.2", "0.3", "10", "[bold]"))


def seed_job(seed: int, lr: str, accuracy: float | None) -> Outcome:
    """Return the outcome of a finished job with a seed, or of a failed job if ``accuracy`` is None."""
    overrides = [f"seed={seed}", f"lr={lr}"]
    if accuracy is None:
        error = Failure("NumericError", "the loss is nan", 5)
        return Outcome(0, overrides, {}, "failed", replace(SUMMARY, status="failed", error=error, headline={}))
    return Outcome(0, overrides, {}, "finished", replace(SUMMARY, headline={"test/accuracy": accuracy}))


def test_each_combination_is_a_row_with_mean_spread_and_count_and_the_best_is_first() -> None:
    trained = [(1, "0.1", 0.5), (1, "0.2", 0.8), (2, "0.1", 0.6), (2, "0.2", 0.9), (3, "0.2", 0.7)]
    jobs = [seed_job(*each) for each in trained]
    table = seeds_table(over_seeds(jobs, ACCURACY), ACCURACY)
    assert table.headers == ("lr", "n", "test_accuracy_mean", "test_accuracy_sd", "step_time_ms", "status")
    assert table.rows[0] == ("0.2", 3, pytest.approx(0.8), statistics.stdev([0.8, 0.9, 0.7]), 10.0, "finished")
    assert table.rows[1][:4] == ("0.1", 2, pytest.approx(0.55), pytest.approx(math.sqrt(2 * 0.05**2)))
    narrow = seeds_table(over_seeds(jobs, ACCURACY), ACCURACY, narrow=True)
    assert narrow.headers == ("lr", "n", "test_accuracy", "step_time_ms", "status")
    assert column(narrow, "test_accuracy") == ["0.8 ± 0.1", "0.55 ± 0.07071"]


def test_failed_seeds_are_shown_but_not_averaged() -> None:
    jobs = [seed_job(1, "0.1", 0.5), seed_job(2, "0.1", None), seed_job(1, "9", None), seed_job(2, "9", None)]
    table = seeds_table(over_seeds(jobs, ACCURACY), ACCURACY)
    assert [row[:4] for row in table.rows] == [("0.1", 1, 0.5, None), ("9", 0, None, None)]
    assert column(table, "status") == ["1 finished, 1 failed", "2 failed"]
    assert column(table, "error") == ["NumericError: the loss is nan"] * 2


def test_each_swept_key_but_the_seed_has_a_panel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[tuple[dict[str, Series], str, Path]] = []
    monkeypatch.setattr("runner.sweeps.plot.metric_over_keys", lambda *given: drawn.append(given) or given[2])
    jobs = [seed_job(seed, lr, float(lr) + seed) for seed in (1, 2) for lr in ("0.5", "2")]
    with_units = [replace(job, overrides=[*job.overrides, f"units={8 + (job is jobs[-1])}"]) for job in jobs]
    failed = seed_job(3, "4", None)
    path = tmp_path / "sweep.png"
    assert draw_sweep([*with_units, failed], ACCURACY, path) == path
    ((panels, metric, _),) = drawn
    assert metric == "test/accuracy"
    assert panels == {
        "lr": {"units=8": {"0.5": [1.5, 2.5], "2": [3.0]}, "units=9": {"2": [4.0]}},
        "units": {"lr=0.5": {"8": [1.5, 2.5]}, "lr=2": {"8": [3.0], "9": [4.0]}},
    }
    assert draw_sweep([jobs[0], failed], ACCURACY, path) is None
    assert draw_sweep([jobs[0], jobs[2]], ACCURACY, path) == path, "only the seed differs"
    assert drawn[1][0] == {"seed": {"": {"1": [1.5], "2": [2.5]}}}


@pytest.mark.parametrize("seeds", [(1, 1), (3,)])
def test_without_several_seeds_there_is_no_table_over_seeds(seeds: tuple[int, ...]) -> None:
    assert over_seeds([seed_job(seed, lr, 0.5) for seed in seeds for lr in ("1", "2")], ACCURACY) == []


def test_a_standard_deviation_needs_two_values() -> None:
    assert spread_of([1.0]) is None
    assert spread_of([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert math.isnan(spread_of([1.0, math.inf]) or 0.0)


ADDRESS = "http://127.0.0.1:9"


Ended = list[tuple[Any, ...]]
"""The arguments of each call that ended the record of the sweep."""


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Ended:
    calls: Ended = []
    monkeypatch.setattr("runner.sweeps.report.end_parent", lambda *arguments: calls.append(arguments))
    return calls


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a recorded sweep of two jobs: the first ended at 11 s, the second failed at 12.5 s."""

    def record(call: Call) -> None:
        call.run_dir.mkdir(exist_ok=True)
        (call.run_dir / "config.yaml").write_text("tracking: {uri: null}")
        Origin.begun(ADDRESS, "mine", a_run(call.run_dir))
        if call.config.seed == 2:
            raise NumericError("the loss is nan")

    folder = tmp_path_factory.mktemp("recorded")
    arguments = ["-m", "tracking=none", "tracking.pictures=false", "hydra.sweep.dir=sweep", "seed=1,2"]
    assert run_in(folder, arguments, record) == 1
    (folder / "sweep" / "sweep.json").write_text("{}")
    os.utime(folder / "sweep" / "0" / "summary.json", (1, 11))
    os.utime(folder / "sweep" / "1" / "failure.json", (1, 12.5))
    return folder


@pytest.fixture
def sweep(recorded: Path, folder: Path) -> Path:
    """Return the directory of a copy of the recorded sweep."""
    copied(recorded, folder)
    return folder / "sweep"


def test_the_record_ends_with_the_status_of_its_jobs_and_the_tables(sweep: Path, ended: Ended) -> None:
    (sweep / "jobs.csv").unlink()
    end_late(sweep)
    ((uri, experiment, directory, result, ended_ms),) = ended
    assert (uri, experiment, directory, result.status, ended_ms) == (ADDRESS, "mine", sweep, "failed", 12_500)
    assert result.artifacts == [sweep / "jobs.csv", sweep / "seeds.csv", sweep / "jobs.md"]
    assert result.artifacts[0].exists()
    assert "the loss is nan" in result.description
    assert result.params == {"seed": "1, 2"}
    assert result.metrics == {"jobs_finished": 1.0, "jobs_failed": 1.0, "best_test_accuracy": 0.1}


def test_the_best_value_of_the_record_is_of_a_job_that_did_not_diverge(sweep: Path, ended: Ended) -> None:
    path = sweep / "0" / "summary.json"
    replace(Summary.read(path), status="diverged").write(path)
    end_late(sweep)
    assert [result.metrics for _, _, _, result, _ in ended] == [{"jobs_finished": 0.0, "jobs_failed": 1.0}]


def test_the_record_of_a_sweep_with_an_unfinished_job_is_interrupted(sweep: Path, ended: Ended) -> None:
    (sweep / "1" / "failure.json").unlink()
    end_late(sweep)
    assert [(result.status, ended_ms) for _, _, _, result, ended_ms in ended] == [("interrupted", 11_000)]


def test_the_record_of_a_running_sweep_is_not_ended(sweep: Path, ended: Ended) -> None:
    with job_lock(sweep / "0", on_wait=lambda: None):
        end_late(sweep)
    with sweep_lock(sweep), pytest.raises(DirectoryInUseError, match="is running"):
        end_late(sweep)
    assert ended == []


def test_a_sweep_is_found_once_from_its_jobs(sweep: Path) -> None:
    assert recorded_sweeps([sweep, sweep / "0", sweep / "1", sweep.parent]) == [sweep]
    (sweep / "sweep.json").unlink()
    assert recorded_sweeps([sweep]) == []


def test_sync_ends_the_record_and_reports_failures(sweep: Path, ended: Ended, capsys: Capture) -> None:
    assert main(["sync", "sweep"]) == 0
    assert len(ended) == 1
    Spool(sweep / "1" / SPOOL_FILE).append([Tags({"a": "b"})])
    (sweep / "1" / ORIGIN_FILE).unlink()
    assert main(["sync", "sweep"]) == 1
    assert len(ended) == 1, "records of one of its jobs could not be written"
    (sweep / "1" / SPOOL_FILE).unlink()
    Origin.begun("http://me:hunter2@host", "mine", a_run(sweep / "0"))
    assert main(["sync", "sweep/1"]) == 1
    assert f"warning: the tracking record of the sweep in {sweep} could not be ended (" in capsys.readouterr().err
