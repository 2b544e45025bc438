"""The training loop in one process: steps, evaluations, checkpoints, and its end after errors and signals."""

import itertools
import json
import math
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.checkpoint import load
from runner.engine.run.step_driver import StepDriver, Synchronous
from runner.errors import CheckpointError, ConfigError, DirectoryInUseError, Interrupted, NumericError, RunnerError
from runner.records.record import Record
from runner.records.summary import Summary
from runner.tracking import read_metrics
from runner.training import non_finite
from runner.training.build import build
from runner.training.experiment import Experiment, train_step
from runner.training.kept_states import KeptStates
from runner.training.non_finite import replay
from tests.small_runs import small_config, train


def steps_of(folder: Path, metric: str) -> list[int]:
    return [r.step for r in read_metrics(folder / "metrics.jsonl") if metric in r.values]


def test_epochs_become_steps_and_evaluations_read_the_test_split_once() -> None:
    lengths = ("train.epochs=2", "train.steps=null", "train.batch_size=100", "train.eval_batch_size=100")
    experiment = build(small_config(*lengths))
    assert (experiment.facts.train_examples, experiment.facts.test_examples) == (1438, 359)
    assert experiment.total_steps == math.ceil(2 * 14.38)
    assert experiment.eval_every == 14
    assert experiment.eval_batches == {"test": 4}
    # In floating point, 100 epochs of 1.1 steps are more than 110 steps, and 0.07 epochs of 100 steps more than 7.
    for epochs, batch_size, limit, steps in ((100, 10, 11, 110), (0.07, 1, 100, 7)):
        lengths = (f"train.epochs={epochs}", "train.steps=null", f"train.batch_size={batch_size}")
        assert build(small_config(*lengths, f"data.train_limit={limit}")).total_steps == steps


def test_repeated_steps_synchronize_at_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []
    driver = SimpleNamespace(
        update=lambda step, rate: events.append(step), synchronize=lambda: events.append("synchronized")
    )
    monkeypatch.setattr(non_finite, "bind", lambda settings, session: driver)
    session: Any = None
    replay(session, build(small_config("train.eval_every=2")), first_step=1, last_step=4)
    assert events == [1, "synchronized", 2, 3, "synchronized", 4, "synchronized"]


@pytest.mark.parametrize("longest", [1, 16])
def test_a_run_evaluates_logs_and_saves_when_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    """A series of updates ends where something else is due. The first update is alone, because its time is unknown."""
    series: list[int] = []
    made = Synchronous.updates

    def updates(self: Synchronous, first: int, rates: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
        series.append(len(rates))
        return made(self, first, rates)

    monkeypatch.setattr(Synchronous, "longest_series", lambda self, step: longest)
    monkeypatch.setattr(Synchronous, "updates", updates)
    monkeypatch.setattr("runner.training.experiment._SERIES_S", 1e9)
    overrides = ("train.steps=7", "train.eval_every=3", "train.log_every=5", "checkpoint.every_steps=2")
    summary = train(tmp_path, *overrides)
    assert series == ([1] * 7 if longest == 1 else [1, 1, 1, 1, 2, 1])
    assert steps_of(tmp_path, "test/accuracy") == [3, 6, 7]
    assert steps_of(tmp_path, "train/loss") == [1, 5, 7]
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-4", "step-6", "step-7"]
    assert (summary.steps, summary.examples) == (7, 7 * 32)
    assert summary.final["test/accuracy"] <= summary.best["test/accuracy"]
    assert Summary.read(tmp_path / "summary.json") == summary


def values_of(folder: Path, metric: str) -> list[float]:
    return [r.values[metric] for r in read_metrics(folder / "metrics.jsonl") if metric in r.values]


def test_every_point_has_one_value_of_each_x_axis_also_after_a_resume(tmp_path: Path) -> None:
    """A chart over a metric needs one value of the metric at each step of the other metrics."""
    lengths = ("train.eval_every=3", "train.log_every=2", "checkpoint.every_steps=2")
    train(tmp_path, *lengths, "train.steps=4")
    train(tmp_path, *lengths, "train.steps=7", resume=True)
    points = [1, 2, 3, 4, 6, 7]
    assert sorted({*steps_of(tmp_path, "train/loss"), *steps_of(tmp_path, "test/accuracy")}) == points
    assert [steps_of(tmp_path, name) for name in ("train/examples", "train/seconds")] == [points, points]
    assert values_of(tmp_path, "train/examples") == [32 * step for step in points]
    seconds = values_of(tmp_path, "train/seconds")
    assert seconds[0] > 0
    assert all(earlier < later for earlier, later in itertools.pairwise(seconds))


def test_the_examples_of_every_evaluation_of_a_line_search_count(tmp_path: Path) -> None:
    train(tmp_path, "optimizer=lbfgs", "schedule=constant", "train.log_every=1", "train.steps=5")
    evaluations = values_of(tmp_path, "train/evaluations")
    assert max(evaluations) > 1
    assert values_of(tmp_path, "train/examples") == [32 * count for count in itertools.accumulate(evaluations)]


def test_evaluation_scores_every_example_of_the_test_split_once(tmp_path: Path) -> None:
    summaries = [train(tmp_path / str(size), f"train.eval_batch_size={size}") for size in (359, 100, 17)]
    losses = [summary.final["test/loss"] for summary in summaries]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)
    assert len({summary.final["test/accuracy"] for summary in summaries}) == 1


def test_metrics_are_on_disk_before_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(Record, "sync", lambda record: events.append("metrics"))

    def saved(*arguments: object, **named: object) -> Path:
        events.append("checkpoint")
        return tmp_path

    monkeypatch.setattr("runner.training.saving.save_checkpoint", saved)
    train(tmp_path, "train.steps=4", "checkpoint.every_steps=2")
    assert events == ["metrics", "checkpoint"] * 2


def test_resume_with_more_steps_continues_the_curve(tmp_path: Path) -> None:
    overrides = ("schedule=constant", "train.log_every=1")
    whole = train(tmp_path / "whole", *overrides, "train.steps=6")
    train(tmp_path / "run", *overrides, "train.steps=4")
    for _ in range(2):  # the second resume, of a finished run, changes nothing
        longer = train(tmp_path / "run", *overrides, "train.steps=6", resume=True)
        assert (longer.weights_sha256, longer.steps) == (whole.weights_sha256, 6)
        assert steps_of(tmp_path / "run", "train/loss") == [1, 2, 3, 4, 5, 6]


def test_lbfgs_resumes_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    """The history of L-BFGS, which includes scalars, is restored, and tracing changes no result."""
    settings = ("optimizer=lbfgs", "schedule=constant", "train.batch_size=100", "train.log_every=1")
    whole = train(tmp_path / "whole", *settings, "train.steps=5")
    train(tmp_path / "stopped", *settings, "train.steps=3", "trace=true", "trace_skip=0", "trace_steps=1")
    resumed = train(tmp_path / "stopped", *settings, "train.steps=5", resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert steps_of(tmp_path / "stopped", "train/objective") == steps_of(tmp_path / "whole", "train/objective")
    assert (tmp_path / "stopped" / "trace.json").exists()


def test_a_second_run_and_a_checkpoint_of_another_run_are_refused(tmp_path: Path, trained: Callable[..., Path]) -> None:
    train(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("runner.training.run.build")  # the directory is refused before the network is built
        with pytest.raises(DirectoryInUseError, match="already holds a run"):
            train(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "step-3")
    shutil.copytree(trained() / "checkpoints" / "step-3", tmp_path / "checkpoints" / "step-3")
    with pytest.raises(CheckpointError, match="belongs to run"):
        train(tmp_path, resume=True)


def test_a_loss_that_is_not_finite_is_traced_to_its_node(tmp_path: Path) -> None:
    with pytest.raises(NumericError, match=r"the loss of step \d+ is (nan|inf).*node 'train/.*no earlier node"):
        train(tmp_path, "optimizer.lr=1e30", "train.steps=20")
    summary = Summary.read(tmp_path / "summary.json")
    assert summary.error is not None
    assert (summary.status, summary.error.exit_code) == ("failed", NumericError.exit_code)


def closings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each record adds its status when it is closed."""
    noted: list[str] = []
    close = Record.close

    def noting(record: Record, status: str) -> None:
        noted.append(status)
        close(record, status)

    monkeypatch.setattr(Record, "close", noting)
    return noted


def refuse(*arguments: object, **named: object) -> Any:
    raise OSError("no space")


@pytest.mark.parametrize(
    ("what", "reported"),
    [
        ("training.kept_states.Decisions.write", "writing the record of the used workers"),
        ("training.recording.step_time", "writing the summary"),
        ("records.record.Record.plots", "drawing plots"),
    ],
)
def test_an_error_after_a_failure_is_a_warning_and_the_record_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str, reported: str
) -> None:
    monkeypatch.setattr(f"runner.{what}", refuse)
    statuses = closings(monkeypatch)
    with pytest.raises(NumericError, match=r"the loss of step \d+ is"):
        train(tmp_path, "optimizer.lr=1e30", "train.steps=20")
    assert f"{reported} failed too, after NonFiniteLossError: no space" in caplog.messages
    assert statuses == ["failed"]


@pytest.mark.parametrize(
    ("what", "stored"), [("training.recording.step_time", "failed"), ("records.summary.Summary.write", "")]
)
def test_a_late_error_fails_the_run_and_closes_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, stored: str
) -> None:
    monkeypatch.setattr(f"runner.{what}", refuse)
    statuses = closings(monkeypatch)
    with pytest.raises(OSError, match="no space"):
        train(tmp_path)
    assert statuses == ["failed"]
    path = tmp_path / "summary.json"
    assert (Summary.read(path).status if path.exists() else "") == stored


def test_a_model_that_does_not_fit_its_images_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pool"):
        train(tmp_path / "run", "model=lenet", "data=synthetic", "data.shape=[1,2,2]")
    assert not (tmp_path / "run").exists()


def test_the_record_of_a_run_is_complete(tmp_path: Path) -> None:
    summary = train(tmp_path, "tracking.pictures=true")
    for file, text in (("config.yaml", "seed: 0"), ("graph.dot", "digraph"), ("run.log", "checkpoint")):
        assert text in (tmp_path / file).read_text()
    assert (tmp_path / "plots" / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "summary.json").read_text())["weights_sha256"] == summary.weights_sha256
    checkpoint = load(tmp_path / "checkpoints" / "step-3")
    assert checkpoint.manifest.meta.examples == summary.examples == 3 * 32
    stored = checkpoint.variables
    assert {"fc1/weights", "fc1/weights/velocity"} <= stored.keys()
    assert all(np.isfinite(value).all() for value in stored.values())


def test_no_checkpoint_is_written_if_a_variable_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fast ReLU turns NaN into 0, so the loss of a network with NaN in its weights can be finite.
    healthy = KeptStates.variables

    def ruined(states: KeptStates) -> dict[str, np.ndarray]:
        return {**healthy(states), "fc1/bias": np.array([np.nan], np.float32)}

    monkeypatch.setattr(KeptStates, "variables", ruined)
    expected = r"variable 'fc1/bias' is not finite after step 1, so no checkpoint is written: lower optimizer.lr"
    with pytest.raises(NumericError, match=expected):
        train(tmp_path, "train.steps=4", "train.eval_every=2", "checkpoint.keep_best=true")
    assert not list((tmp_path / "checkpoints").glob("step-*"))
    summary = Summary.read(tmp_path / "summary.json")
    assert (summary.best_step, summary.best_checkpoint) == (2, None)


def test_a_trace_is_two_files_and_a_table_and_changes_no_weight(tmp_path: Path, trained: Callable[..., Path]) -> None:
    plain = trained("train.steps=6")
    assert not (plain / "trace.json").exists()
    traced = train(tmp_path, "train.steps=6", "trace=true", "trace_skip=2", "trace_steps=3")
    assert traced.weights_sha256 == Summary.read(plain / "summary.json").weights_sha256
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["args"]["step"] for event in events if event["ph"] == "X"} == {2, 3, 4}
    summary = json.loads((tmp_path / "trace_summary.json").read_text())
    assert [each["step"] for each in summary["steps"]] == [2, 3, 4]
    assert "critical path of 3 step(s)" in (tmp_path / "run.log").read_text()


@pytest.mark.parametrize("ended", ["stopped", "failed"])
def test_a_run_that_ends_within_its_trace_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    def ending(driver: StepDriver, experiment: Experiment, step: int) -> Mapping[str, NDArray[Any]]:
        answer = train_step(driver, experiment, step)
        if step == 3 and ended == "failed":
            raise RunnerError("out of luck")
        if step == 3:
            signal.raise_signal(signal.SIGTERM)
        return answer

    monkeypatch.setattr("runner.training.experiment.train_step", ending)
    with pytest.raises(RunnerError if ended == "failed" else Interrupted, match=r"out of luck|stopped after step 4"):
        train(tmp_path, "train.steps=20", "trace=true", "trace_skip=2", "trace_steps=10")
    summary = json.loads((tmp_path / "trace_summary.json").read_text())
    assert [each["step"] for each in summary["steps"]] == [2, 3]
