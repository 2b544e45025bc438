"""Callbacks: a run that a callback stops ends in order, as after its last step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runner.callback import Callback, StopTraining
from runner.checkpoint import load
from runner.records.summary import Summary
from runner.tracking import read_metrics
from runner.training.run import run
from tests.small_runs import small_config

LENGTHS = ("train.steps=9", "train.eval_every=4", "train.log_every=5", "checkpoint.every_steps=3", "schedule=constant")
"""The learning rate of the constant schedule does not depend on the length."""


@dataclass
class Stopper(Callback):
    """Raises StopTraining when ``method`` is called at ``step``, and keeps every call."""

    method: str
    step: int
    reason: str = "enough"
    calls: list[tuple[str, int]] = field(default_factory=list)

    def on_step(self, step: int, loss: float) -> None:
        self._called("on_step", step)

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self._called("on_evaluation", step)

    def on_checkpoint(self, step: int, path: Path) -> None:
        self._called("on_checkpoint", step)

    def _called(self, method: str, step: int) -> None:
        self.calls.append((method, step))
        if (method, step) == (self.method, self.step):
            raise StopTraining(self.reason)


@pytest.mark.parametrize(
    ("method", "step", "last"),
    [
        ("on_step", 1, 1),
        ("on_step", 4, 4),
        ("on_step", 6, 6),
        ("on_evaluation", 4, 4),
        ("on_checkpoint", 3, 4),  # the checkpoint precedes any evaluation of step 3
        ("on_checkpoint", 6, 7),
        ("on_step", 9, 9),
        ("on_evaluation", 9, 9),
        ("on_checkpoint", 9, 9),
    ],
)
def test_a_stopped_run_ends_as_after_its_last_step(
    method: str, step: int, last: int, tmp_path: Path, trained: Callable[..., Path]
) -> None:
    """The metrics and weights equal those of a run of this length. A second callback is called nevertheless."""
    stopper, other = Stopper(method, step), Stopper("", 0)
    config = small_config(*LENGTHS)
    summary = run(config, tmp_path, overrides=[], callbacks=[stopper, other])
    reason = f"after step {last} of 9: Stopper: enough" if last < 9 else ""
    assert (summary.status, summary.steps, summary.stopped, summary.error) == ("finished", last, reason, None)
    assert stopper.calls == other.calls
    assert ("on_evaluation", last) in stopper.calls
    assert stopper.calls[-1] == ("on_checkpoint", last)
    assert len(set(stopper.calls)) == len(stopper.calls)
    checkpoint = load(tmp_path / "checkpoints" / f"step-{last}")
    assert checkpoint.manifest.meta.progress["monitor/best_step"] in (4, 8, last)
    logged = {name for r in read_metrics(tmp_path / "metrics.jsonl") if r.step == last for name in r.values}
    assert "test/loss" in logged
    assert "train/loss" in logged or method == "on_evaluation", "an evaluation follows the metrics of its step"
    short = Summary.read(trained(*LENGTHS, f"train.steps={last}") / "summary.json")
    assert summary.weights_sha256 == short.weights_sha256


def test_the_first_reason_counts_and_a_resume_continues(tmp_path: Path, trained: Callable[..., Path]) -> None:
    config = small_config(*LENGTHS)
    stoppers = [Stopper("on_step", 5, ""), Stopper("on_step", 5, "too late")]
    stopped = run(config, tmp_path / "a", overrides=[], callbacks=stoppers)
    assert stopped.stopped == "after step 5 of 9: Stopper"
    resumed = run(config, tmp_path / "a", overrides=[], resume=True)
    assert (resumed.status, resumed.steps, resumed.stopped) == ("finished", 9, "")
    assert resumed.weights_sha256 == Summary.read(trained(*LENGTHS) / "summary.json").weights_sha256
