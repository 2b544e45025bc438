"""The best value of the monitored metric, early stopping, and runs with a validation split."""

import math
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.checkpoint import BEST, find, load
from runner.config.schema import Config
from runner.data.source import source_from_config
from runner.engine.run.local_session import LocalSession
from runner.errors import Interrupted
from runner.kernels.registry import Registry
from runner.records.summary import Summary
from runner.tasks.classification import Classification
from runner.tasks.language import Language
from runner.tracking import read_metrics
from runner.training import trainer
from runner.training.build import build, source_document
from runner.training.evaluation import BestMetric, Scores, evaluate
from tests.small_runs import small_config, train

VALIDATED = ("data.val_fraction=0.2", "train.eval_every=2", "schedule=constant")
STOPPING = (*VALIDATED, "train.patience=2", "train.steps=30")
ACCURACIES = {2: 0.3, 4: 0.5, 6: 0.4, 8: 0.6, 10: 0.55, 12: 0.6, 14: 0.9}
"""Step -> the accuracy that replaces the measured accuracy."""


@pytest.fixture
def accuracies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measured accuracies by :data:`ACCURACIES`."""
    update_best = trainer.Trainer._update_best

    def replaced(self: Any, values: dict[str, float], counted: bool) -> None:
        accuracy = ACCURACIES.get(self.progress.done, 0.2)
        update_best(self, values | {"val/accuracy": accuracy, "test/accuracy": accuracy}, counted)

    monkeypatch.setattr(trainer.Trainer, "_update_best", replaced)


def checkpoints(folder: Path) -> list[str]:
    return sorted((path.name for path in (folder / "checkpoints").iterdir()), key=lambda n: int(n[5:]))


def test_epochs_count_the_examples_without_the_validation_split() -> None:
    experiment = build(small_config("data.val_fraction=0.25", "train.steps=null", "train.epochs=2"))
    assert (experiment.facts.train_examples, experiment.facts.val_examples) == (1078, 360)
    assert experiment.steps_per_epoch == 1078 / 32
    assert experiment.total_steps == 68
    assert experiment.eval_batches == {"test": 2, "val": 2}
    assert "validate" not in build(small_config()).program.clients


def test_every_evaluation_scores_both_splits(tmp_path: Path) -> None:
    summary = train(tmp_path, *VALIDATED, "train.steps=5")
    scored = [r for r in read_metrics(tmp_path / "metrics.jsonl") if "val/accuracy" in r.values]
    assert [r.step for r in scored] == [2, 4, 5]
    assert all({"val/loss", "test/loss", "test/accuracy"} <= r.values.keys() for r in scored)
    assert summary.monitor == "val/accuracy"
    assert summary.best_value == summary.best["val/accuracy"]


@pytest.mark.parametrize("strategy", ["sync_data", "hybrid", "model", "async_data", "sandblaster"])
def test_every_strategy_scores_the_validation_split_as_one_process_does(strategy: str, registry: Registry) -> None:
    lbfgs = ("optimizer=lbfgs", "schedule=constant") if strategy == "sandblaster" else ()
    common = ("precision=float64", "data.val_fraction=0.2", "train.eval_batch_size=100", *lbfgs)
    expected = scores("parallelism=single", *common, registry=registry)
    found = scores(f"parallelism={strategy}", "parallelism.workers=3", *common, registry=registry)
    assert expected["val"].examples == 288
    for split in ("val", "test"):
        assert found[split].metrics == pytest.approx(expected[split].metrics, abs=1e-12)
        assert (found[split].confusion == expected[split].confusion).all()


def scores(*overrides: str, registry: Registry) -> dict[str, Scores]:
    """Return the scores of the initial weights by split. The program of any strategy runs in this process."""
    experiment = build(small_config(*overrides))
    with (
        source_from_config(**source_document(experiment.config)) as source,
        closing(LocalSession(experiment.program, experiment.cluster, registry, source)) as session,
    ):
        session.run("init")
        return {
            split: evaluate(session, Classification(), batches=batches, classes=10, split=split)
            for split, batches in experiment.eval_batches.items()
        }


@pytest.mark.usefixtures("accuracies")
def test_a_run_ends_after_patience_evaluations_without_improvement(tmp_path: Path) -> None:
    summary = train(tmp_path, *STOPPING)
    assert (summary.status, summary.steps, summary.best_step, summary.best_value) == ("finished", 12, 8, 0.6)
    stopped = "after step 12 of 30: val/accuracy was not better than 0.6 in the last 2 evaluations (train.patience=2)"
    assert summary.stopped == stopped
    assert f"stopped early {summary.stopped}" in (tmp_path / "run.log").read_text()
    assert Summary.read(tmp_path / "summary.json") == summary
    again = train(tmp_path, *STOPPING, resume=True)
    assert (again.steps, again.stopped, again.weights_sha256) == (12, summary.stopped, summary.weights_sha256)


@pytest.mark.usefixtures("accuracies")
def test_an_improvement_below_min_delta_does_not_reset_patience(tmp_path: Path) -> None:
    summary = train(tmp_path, *STOPPING, "train.min_delta=0.15")
    assert (summary.steps, summary.best_step) == (8, 8), "0.6 is best, although less than 0.15 above 0.5"
    assert "was not better than 0.5 by more than 0.15" in summary.stopped


@pytest.mark.usefixtures("accuracies")
@pytest.mark.parametrize(
    ("settings", "kept", "monitor", "best"),
    [
        ((*VALIDATED, "checkpoint.every_steps=1"), [8, 11, 12, 13], "val/accuracy", 8),
        (VALIDATED, [4, 8, 13], "val/accuracy", 8),
        ((*VALIDATED, "checkpoint.keep_best=false"), [13], "val/accuracy", None),
        (("train.eval_every=2",), [13], "test/accuracy", None),
    ],
)
def test_the_best_checkpoint_is_kept_besides_the_newest_on_request(
    tmp_path: Path, settings: tuple[str, ...], kept: list[int], monitor: str, best: int | None
) -> None:
    summary = train(tmp_path, *settings, "train.steps=13")
    assert checkpoints(tmp_path) == [f"step-{step}" for step in kept]
    assert (summary.monitor, summary.best_step) == (monitor, 8)
    assert summary.best_checkpoint == (None if best is None else f"checkpoints/step-{best}")
    if best is not None:
        assert find(tmp_path) == find(tmp_path, BEST) == tmp_path / "checkpoints" / f"step-{best}"


@pytest.mark.usefixtures("accuracies")
def test_a_killed_run_ends_early_at_the_step_of_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(tmp_path / "whole", *STOPPING)
    step = trainer.Trainer._steps
    for last in (1, 5, 7, 11):
        folder = tmp_path / str(last)

        def dying(self: Any, steps: range, last: int = last) -> None:
            if self.progress.done == last:
                raise KeyError
            step(self, steps)

        with monkeypatch.context() as patched:
            patched.setattr(trainer.Trainer, "_steps", dying)
            with pytest.raises(KeyError):
                train(folder, *STOPPING, "checkpoint.every_steps=5")
        resumed = train(folder, *STOPPING, "checkpoint.every_steps=5", resume=True)
        assert (resumed.steps, resumed.stopped, resumed.best_step) == (whole.steps, whole.stopped, whole.best_step)
        assert resumed.weights_sha256 == whole.weights_sha256
        assert "step-8" in checkpoints(folder)


THIRTEEN = (*VALIDATED, "train.steps=13")
UNKEPT = ("train.eval_every=2", "schedule=constant")


@pytest.mark.usefixtures("accuracies")
@pytest.mark.parametrize(
    ("starts", "kept"),
    [
        pytest.param(
            [(STOPPING, 12, 8), ((*STOPPING, "train.patience=3", "train.steps=15"), 15, 14)],
            [12, 14, 15],
            id="an early end is final until patience is larger",
        ),
        pytest.param(
            [((*UNKEPT, "train.steps=15"), 15, 14), ((*UNKEPT, "train.steps=19", "train.patience=2"), 19, 16)],
            [15, 16, 19],
            id="a best value without a checkpoint is forgotten if the best is to be kept",
        ),
        pytest.param(
            [(THIRTEEN, 13, 8), (STOPPING, 18, 14), ((*VALIDATED, "train.steps=20"), 20, 14), (STOPPING, 26, 14)],
            [18, 20, 26],
            id="evaluations without patience are not counted later",
        ),
        pytest.param(
            [((*STOPPING, "train.steps=11"), 11, 8), (STOPPING, 12, 8)],
            [8, 11, 12],
            id="an evaluation at the end that is not due is not counted",
        ),
    ],
)
def test_a_resumed_run_counts_evaluations_by_its_present_settings(
    tmp_path: Path, starts: list[tuple[tuple[str, ...], int, int]], kept: list[int]
) -> None:
    for number, (settings, steps, best) in enumerate(starts):
        summary = train(tmp_path, *settings, resume=number > 0)
        assert (summary.steps, summary.best_step) == (steps, best)
    assert checkpoints(tmp_path)[-3:] == [f"step-{step}" for step in kept]


def test_the_training_loss_can_be_monitored_too(tmp_path: Path) -> None:
    summary = train(tmp_path, "train.monitor=train/loss", "train.eval_every=1", "train.log_every=1")
    records = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert summary.best_value == min(r.values["train/loss"] for r in records if "train/loss" in r.values)


def test_a_resumed_run_keeps_the_count_of_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (*VALIDATED, "train.steps=20", "train.patience=5", "train.min_delta=1")
    with monkeypatch.context() as patched:
        patched.setattr(trainer.Trainer, "_stop_if_requested", stop_at_6)
        with pytest.raises(Interrupted):
            train(tmp_path / "run", *settings)
    progress = load(find(tmp_path / "run", "newest")).manifest.meta.progress
    assert progress["monitor/waited"] == 2
    found, expected = train(tmp_path / "run", *settings, resume=True), train(tmp_path / "whole", *settings)
    assert (found.steps, found.stopped, found.best_step) == (12, expected.stopped, expected.best_step)
    assert (found.best_value, found.weights_sha256) == (expected.best_value, expected.weights_sha256)


def stop_at_6(self: Any) -> None:
    if self.progress.done == 6:
        self._states.save(self.progress)
        raise Interrupted(2)


BETTER_BY = "train.min_delta=0.1"


def monitoring(metric: str, *overrides: str) -> Config:
    """Return a configuration with patience that monitors a metric and does not keep the best checkpoint."""
    return small_config(f"train.monitor={metric}", "train.patience=3", "checkpoint.keep_best=false", *overrides)


def after(config: Config, values: list[float]) -> BestMetric:
    """Return the best-metric state after these values at steps 10, 20, ..."""
    state = BestMetric()
    for number, value in enumerate(values, start=1):
        state = state.updated(config, 10 * number, value, counted=True)
    return state


ACCURACY, LOSS = monitoring("test/accuracy"), monitoring("test/loss")


@pytest.mark.parametrize(
    ("config", "values", "expected"),
    [
        (ACCURACY, [0.5, 0.8, 0.7, 0.8], BestMetric(0.8, 20, 0.8, 2)),
        (LOSS, [0.5, 0.3, 0.7, 0.3], BestMetric(0.3, 20, 0.3, 2)),
        # A small improvement sets the best value, but patience counts from the last improvement by more than min_delta.
        (monitoring("test/accuracy", BETTER_BY), [0.5, 0.55, 0.59], BestMetric(0.59, 30, 0.5, 2)),
        (monitoring("test/accuracy", BETTER_BY), [0.5, 0.55, 0.59, 0.61], BestMetric(0.61, 40, 0.61, 0)),
        (monitoring("test/loss", BETTER_BY), [0.5, 0.45, 0.41], BestMetric(0.41, 30, 0.5, 2)),
        (monitoring("test/loss", BETTER_BY), [0.5, 0.45, 0.41, 0.39], BestMetric(0.39, 40, 0.39, 0)),
        # If patience is null, evaluations are not counted.
        (monitoring("test/loss", "train.patience=null"), [0.5, 0.6, 0.4], BestMetric(0.4, 30)),
    ],
)
def test_the_best_value_and_patience_are_updated(config: Config, values: list[float], expected: BestMetric) -> None:
    assert after(config, values) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("config", [LOSS, ACCURACY], ids=["loss", "accuracy"])
def test_values_that_are_not_finite_are_never_better(config: Config, value: float) -> None:
    assert after(config, [value]) == BestMetric(waited=1)
    assert after(config, [value, 2.0, value]) == BestMetric(2.0, 20, 2.0, 1)


@pytest.mark.parametrize("state", [BestMetric(), BestMetric(waited=2), after(ACCURACY, [0.5, 0.8, 0.7])])
def test_a_checkpoint_stores_the_whole_state(state: BestMetric) -> None:
    progress: dict[str, Any] = {**state.to_progress(), "other": 1.0}
    assert BestMetric.at_start(ACCURACY, progress) == state


def test_an_evaluation_that_is_not_due_changes_the_best_value_only() -> None:
    state = after(ACCURACY, [0.5, 0.4])
    assert state.updated(ACCURACY, 25, 0.9, counted=False) == BestMetric(0.9, 25, 0.5, 1)


class Weighted:
    """Clients whose evaluation batches have a loss of 3 for one example and of 1 for another with half its weight."""

    def run(self, client: str, *, step: int, feeds: object) -> dict[str, NDArray[np.float64]]:
        return {"loss": np.array(3.0 + 0.5 * 1.0), "mask": np.array([1.0, 0.5, 0.0])}


def test_means_of_an_evaluation_are_weighted_and_metrics_are_functions_of_them() -> None:
    found = evaluate(Weighted(), Language(), batches=2, classes=0)
    assert found.examples == 4
    assert found.metrics == pytest.approx({"loss": 3.5 / 1.5, "perplexity": np.exp(3.5 / 1.5)})
