"""A run with a validation split: scores, early stopping, the best checkpoint, and resuming."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoint import BEST, find, load
from runner.data.source import source_from_config
from runner.engine.run.local_session import LocalSession
from runner.errors import Interrupted
from runner.kernels.registry import Registry
from runner.records.summary import Summary
from runner.tracking import read_metrics
from runner.training import trainer
from runner.training.build import build
from runner.training.evaluation import Scores, evaluate
from runner.training.run import run
from tests.small_runs import small_config
from tests.training.test_trainer import train

VALIDATED = ("data.val_fraction=0.2", "train.eval_every=2", "schedule=constant")
STOPPING = (*VALIDATED, "train.patience=2", "train.steps=30")
ACCURACIES = {2: 0.3, 4: 0.5, 6: 0.4, 8: 0.6, 10: 0.55, 12: 0.6, 14: 0.9}
"""Step -> the accuracy that replaces the measured one."""


@pytest.fixture
def accuracies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measured accuracies by :data:`ACCURACIES`."""
    update_best = trainer.Trainer._update_best

    def replaced(self: Any, values: dict[str, float], counted: bool) -> None:
        accuracy = ACCURACIES.get(self.progress.done, 0.2)
        update_best(self, values | {"val/accuracy": accuracy, "test/accuracy": accuracy}, counted)

    monkeypatch.setattr(trainer.Trainer, "_update_best", replaced)


def checkpoints(folder: Path) -> list[str]:
    return sorted((path.name for path in (folder / "run" / "checkpoints").iterdir()), key=lambda n: int(n[5:]))


def test_epochs_count_the_examples_that_are_left_to_train_on() -> None:
    experiment = build(small_config("data.val_fraction=0.25", "train.steps=null", "train.epochs=2"))
    assert (experiment.facts.train_examples, experiment.facts.val_examples) == (1078, 360)
    assert experiment.steps_per_epoch == 1078 / 32
    assert experiment.total_steps == 68
    assert experiment.eval_batches == {"test": 2, "val": 2}


def test_without_a_validation_split_the_program_has_no_such_client() -> None:
    assert "validate" not in build(small_config()).program.clients
    assert build(small_config()).facts.train_examples == 1438


def test_every_evaluation_scores_both_splits(tmp_path: Path) -> None:
    summary = train(tmp_path, *VALIDATED, "train.steps=5")
    scored = [r for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if "val/accuracy" in r.values]
    assert [r.step for r in scored] == [2, 4, 5]
    assert all({"val/loss", "test/loss", "test/accuracy"} <= r.values.keys() for r in scored)
    assert summary.monitor == "val/accuracy"
    assert summary.best_value == summary.best["val/accuracy"]


@pytest.mark.parametrize(
    "strategy",
    [
        "parallelism=sync_data",
        "parallelism=hybrid",
        "parallelism=model",
        "parallelism=async_data",
        "parallelism=sandblaster",
    ],
)
def test_every_strategy_scores_the_validation_split_as_one_process_does(strategy: str, registry: Registry) -> None:
    lbfgs = ("optimizer=lbfgs", "schedule=constant") if strategy.endswith("sandblaster") else ()
    common = ("precision=float64", "data.val_fraction=0.2", "train.eval_batch_size=100", *lbfgs)
    expected = scores("parallelism=single", *common, registry=registry)
    found = scores(strategy, "parallelism.workers=3", *common, registry=registry)
    assert expected["val"].examples == 288
    for split in ("val", "test"):
        assert found[split].loss == pytest.approx(expected[split].loss, abs=1e-12)
        assert (found[split].confusion == expected[split].confusion).all()


def scores(*overrides: str, registry: Registry) -> dict[str, Scores]:
    """What the initial weights come to, in one process whatever the strategy."""
    config: Any = small_config(*overrides)
    experiment = build(config)
    with (
        source_from_config(
            {"name": "digits", "val_fraction": 0.2}, seed=0, batch_size=32, eval_batch_size=100, dtype="float64"
        ) as source,
        closing(LocalSession(experiment.program, experiment.cluster, registry, source)) as session,
    ):
        session.run("init")
        return {
            split: evaluate(session, batches=batches, classes=10, split=split)
            for split, batches in experiment.eval_batches.items()
        }


@pytest.mark.usefixtures("accuracies")
def test_a_run_ends_after_patience_evaluations_without_improvement(tmp_path: Path) -> None:
    summary = train(tmp_path, *STOPPING)
    assert (summary.status, summary.steps, summary.best_step, summary.best_value) == ("finished", 12, 8, 0.6)
    assert summary.stopped == (
        "after step 12 of 30: val/accuracy was not better than 0.6000 in 2 evaluations (train.patience=2)"
    )
    assert f"stopped early {summary.stopped}" in (tmp_path / "run" / "run.log").read_text()
    assert Summary.read(tmp_path / "run" / "summary.json") == summary


@pytest.mark.usefixtures("accuracies")
def test_an_improvement_below_min_delta_does_not_reset_patience(tmp_path: Path) -> None:
    summary = train(tmp_path, *STOPPING, "train.min_delta=0.15")
    assert (summary.steps, summary.best_step) == (8, 8), "0.6 is not 0.15 above 0.5, and yet the best"
    assert "was not better by more than 0.15 than 0.5000" in summary.stopped


@pytest.mark.usefixtures("accuracies")
def test_the_best_checkpoint_is_kept_besides_the_newest(tmp_path: Path) -> None:
    summary = train(tmp_path, *VALIDATED, "train.steps=13", "checkpoint.every_steps=1")
    assert checkpoints(tmp_path) == ["step-8", "step-11", "step-12", "step-13"]
    assert summary.best_checkpoint == "checkpoints/step-8"
    assert find(tmp_path / "run") == find(tmp_path / "run", BEST) == tmp_path / "run" / "checkpoints" / "step-8"


@pytest.mark.usefixtures("accuracies")
def test_the_best_is_saved_though_no_checkpoint_was_due(tmp_path: Path) -> None:
    train(tmp_path, *VALIDATED, "train.steps=13")
    assert checkpoints(tmp_path) == ["step-4", "step-8", "step-13"]


@pytest.mark.usefixtures("accuracies")
def test_no_best_checkpoint_is_kept_if_keep_best_is_off(tmp_path: Path) -> None:
    summary = train(tmp_path, *VALIDATED, "train.steps=13", "checkpoint.keep_best=false")
    assert checkpoints(tmp_path) == ["step-13"]
    assert (summary.best_step, summary.best_checkpoint) == (8, None)


def test_a_run_that_asks_for_no_comparison_keeps_no_best(tmp_path: Path) -> None:
    summary = train(tmp_path, "train.eval_every=1")
    assert checkpoints(tmp_path) == ["step-3"]
    assert (summary.monitor, summary.best_checkpoint) == ("test/accuracy", None)


@pytest.mark.usefixtures("accuracies")
@pytest.mark.parametrize("died_after", [1, 5, 7, 11])
def test_a_killed_run_ends_early_at_the_step_of_the_uninterrupted_one(
    tmp_path: Path, died_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tmp_path / "whole", *STOPPING)
    step = trainer.Trainer._step

    def dying(self: Any) -> None:
        if self.progress.done == died_after:
            raise KeyError
        step(self)

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Trainer, "_step", dying)
        with pytest.raises(KeyError):
            train(tmp_path, *STOPPING, "checkpoint.every_steps=5")
    resumed = run(small_config(*STOPPING, "checkpoint.every_steps=5"), tmp_path / "run", overrides=[], resume=True)
    assert (resumed.steps, resumed.stopped, resumed.best_step) == (whole.steps, whole.stopped, whole.best_step)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert "step-8" in checkpoints(tmp_path)


@pytest.mark.usefixtures("accuracies")
def test_a_run_that_ended_early_stays_ended_until_it_may_wait_longer(tmp_path: Path) -> None:
    ended = train(tmp_path, *STOPPING)
    again = train(tmp_path, *STOPPING, resume=True)
    assert (again.steps, again.stopped, again.weights_sha256) == (12, ended.stopped, ended.weights_sha256)
    longer = train(tmp_path, *STOPPING, "train.patience=3", "train.steps=15", resume=True)
    assert (longer.steps, longer.stopped, longer.best_step) == (15, "", 14)


@pytest.mark.usefixtures("accuracies")
def test_a_best_that_was_not_kept_is_forgotten_when_one_is_to_be(tmp_path: Path) -> None:
    unkept = ("train.eval_every=2", "schedule=constant")
    train(tmp_path, *unkept, "train.steps=15")
    assert checkpoints(tmp_path) == ["step-15"]
    resumed = train(tmp_path, *unkept, "train.steps=19", "train.patience=2", resume=True)
    assert (resumed.best_step, resumed.best_checkpoint) == (16, "checkpoints/step-16"), "not 14, which was the best"
    assert checkpoints(tmp_path) == ["step-15", "step-16", "step-19"]


@pytest.mark.usefixtures("accuracies")
def test_evaluations_count_from_when_something_is_waited_for(tmp_path: Path) -> None:
    """The best was kept all along; what was not better while patience was null is no reason to end."""
    endless = (*VALIDATED, "train.steps=13")
    train(tmp_path, *endless)
    resumed = train(tmp_path, *STOPPING, resume=True)
    assert (resumed.steps, resumed.best_step) == (18, 14), "0.9 after step 14, then 0.2 twice"
    train(tmp_path, *VALIDATED, "train.steps=20", resume=True)
    again = train(tmp_path, *STOPPING, resume=True)
    assert (again.steps, again.best_step) == (26, 14), "0.2 after step 22, then no better twice"


@pytest.mark.usefixtures("accuracies")
def test_an_evaluation_at_the_end_is_no_evaluation_that_was_waited_for(tmp_path: Path) -> None:
    """A run that was given more steps afterwards ends where one ends that had them from the start."""
    train(tmp_path, *STOPPING, "train.steps=11")
    assert load(find(tmp_path / "run", "newest")).manifest.meta.progress["monitor/waited"] == 1
    assert train(tmp_path, *STOPPING, resume=True).steps == 12


def test_the_loss_of_training_can_be_watched_too(tmp_path: Path) -> None:
    summary = train(tmp_path, "train.monitor=train/loss", "train.eval_every=1", "train.log_every=1")
    records = list(read_metrics(tmp_path / "run" / "metrics.jsonl"))
    assert summary.best_value == min(r.values["train/loss"] for r in records if "train/loss" in r.values)


def test_a_signal_keeps_the_count_of_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer.Trainer, "_stop_if_asked", stop_at_6)
    with pytest.raises(Interrupted):
        train(tmp_path, *VALIDATED, "train.steps=20", "train.patience=5", "train.min_delta=1")
    progress = load(find(tmp_path / "run", "newest")).manifest.meta.progress
    assert progress["monitor/waited"] == 2


def stop_at_6(self: Any) -> None:
    if self.progress.done == 6:
        self._save()
        raise Interrupted(2)
