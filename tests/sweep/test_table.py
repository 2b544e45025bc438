import csv
import io
import math
from dataclasses import replace

import pytest

from runner.config.monitor import Monitor
from runner.records.summary import Failure, Summary
from runner.sweep.outcome import Outcome
from runner.sweep.table import sweep_table, swept_values
from tests.records.test_summary import SUMMARY

ACCURACY = Monitor("test/accuracy")


def outcome_of(summary: Summary) -> Outcome:
    """The outcome of a job that left this summary."""
    return Outcome(0, summary.overrides, {}, summary.status, summary)


def _job(lr: str, accuracy: float | None, **changes: object) -> Outcome:
    best = {} if accuracy is None else {"test/accuracy": accuracy, "test/loss": 1 - accuracy}
    overrides = [f"optimizer.lr={lr}", "+model=mlp"]
    return outcome_of(replace(SUMMARY, overrides=overrides, best=best, **changes))


@pytest.fixture
def jobs() -> list[Outcome]:
    failure = Failure("NumericError", "the loss of step 3 is nan;\nlower optimizer.lr | or clip", 5)
    return [
        _job("10", None, status="failed", error=failure, step_time_s={}),
        _job("0.1", 0.5),
        _job("0.2", 0.9),
        _job("0.3", math.nan),
    ]


def test_the_best_job_comes_first_and_failed_ones_last(jobs: list[Outcome]) -> None:
    table = sweep_table(jobs, ACCURACY)
    assert table.headers == (
        "optimizer.lr",
        "best test/accuracy",
        "best test/loss",
        "step time (ms)",
        "status",
    )
    assert [row[0] for row in table.rows] == ["0.2", "0.1", "0.3", "10"]
    assert table.rows[0] == ("0.2", "0.9000", "0.1000", "10.00", "finished")
    assert table.rows[-1][1:4] == ("", "", "")
    assert table.rows[-1][-1].startswith("failed: NumericError: the loss of step 3 is nan; lower")


def test_without_accuracy_the_lowest_loss_comes_first() -> None:
    summaries = [replace(SUMMARY, overrides=[f"lr={n}"], best={"test/loss": float(n)}) for n in (3, 1, 2)]
    table = sweep_table([outcome_of(summary) for summary in summaries], ACCURACY)
    assert [row[0] for row in table.rows] == ["1", "2", "3"]


@pytest.mark.parametrize(("metric", "order"), [("train/loss", ["2", "1"]), ("val/accuracy", ["1", "2"])])
def test_jobs_are_compared_by_the_monitored_metric_and_show_it_first(metric: str, order: list[str]) -> None:
    values = {"1": {"train/loss": 0.9, "val/accuracy": 0.8}, "2": {"train/loss": 0.5, "val/accuracy": 0.1}}
    best = {lr: {"test/accuracy": float(lr), **metrics} for lr, metrics in values.items()}
    jobs = [outcome_of(replace(SUMMARY, overrides=[f"lr={lr}"], best=of_job)) for lr, of_job in best.items()]
    table = sweep_table(jobs, Monitor(metric))
    assert [row[0] for row in table.rows] == order
    assert table.headers[1] == f"best {metric}"


def test_a_job_without_a_summary_shows_its_status() -> None:
    table = sweep_table(
        [Outcome(0, ["lr=1"], {}, "not started"), Outcome(1, ["lr=2"], {}, "finished", SUMMARY)], ACCURACY
    )
    assert [(row[0], row[-1]) for row in table.rows] == [("2", "finished"), ("1", "not started")]


def test_only_differing_keys_are_columns(jobs: list[Outcome]) -> None:
    assert swept_values(jobs) == [{"optimizer.lr": lr} for lr in ("10", "0.1", "0.2", "0.3")]
    assert swept_values(jobs[:1]) == [{"optimizer.lr": "10", "model": "mlp"}]
    assert swept_values([]) == []


def test_a_key_only_some_jobs_have_differs() -> None:
    jobs = [outcome_of(replace(SUMMARY, overrides=overrides)) for overrides in (["a=1", "b=2"], ["a=1"])]
    assert swept_values(jobs) == [{"b": "2"}, {}]
    assert [row[0] for row in sweep_table(jobs, ACCURACY).rows] == ["2", ""]


def test_text_is_aligned(jobs: list[Outcome]) -> None:
    header, rule, first, *_ = sweep_table(jobs, ACCURACY).text().splitlines()
    starts = [header.index("best test/accuracy"), rule.index("  -") + 2, first.index("0.9000")]
    assert starts == [starts[0]] * 3


def test_markdown_and_csv_hold_every_cell(jobs: list[Outcome]) -> None:
    table = sweep_table(jobs, ACCURACY)
    lines = table.markdown().splitlines()
    assert lines[1] == "| --- | --- | --- | --- | --- |"
    assert all(line.replace("\\|", "").count("|") == len(table.headers) + 1 for line in lines)
    assert [tuple(row) for row in csv.reader(io.StringIO(table.csv()))] == [table.headers, *table.rows]


def test_printed_to_a_file_it_is_plain_text(jobs: list[Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    table = sweep_table(jobs, ACCURACY)
    table.print()
    assert capsys.readouterr().out == table.text() + "\n"


def test_printed_to_a_terminal_it_shows_every_row_and_no_markup(
    jobs: list[Outcome], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    sweep_table([*jobs, _job("[bold]", 0.95)], ACCURACY).print()
    printed = capsys.readouterr().out
    assert all(lr in printed for lr in ("0.1", "0.2", "0.3", "10", "[bold]"))
