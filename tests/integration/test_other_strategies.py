"""A run that is resumed with other strategies and numbers of workers has the weights of an uninterrupted run."""

from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import load
from runner.config.configuration import load_stored
from runner.tracking import read_metrics
from tests.integration.command import QUIET, succeed, summary_of

COMMON = (
    *QUIET,
    "hydra.run.dir=run",
    "model=lenet",
    "precision=float64",
    "optimizer=momentum",
    "schedule=constant",
    "data.val_fraction=0.2",
    "train.batch_size=8",
    "train.eval_every=3",
    "train.log_every=1",
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run in one process from start to end."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    succeed(folder, *COMMON, "parallelism=single", "train.steps=9")
    return folder / "run"


def test_a_run_continues_with_four_then_two_workers_then_one_process(uninterrupted: Path, tmp_path: Path) -> None:
    for arguments in (
        (*COMMON, "parallelism=sync_data", "parallelism.workers=4", "train.steps=3"),
        ("resume=run", "parallelism=hybrid", "parallelism.workers=2", "train.steps=6"),
        ("resume=run", "parallelism=single", "train.steps=9"),
    ):
        succeed(tmp_path, *arguments)
    run, weights = (
        tmp_path / "run",
        [load(d / "checkpoints" / "step-9").variables for d in (uninterrupted, tmp_path / "run")],
    )
    assert weights[0].keys() == weights[1].keys()
    assert max(float(np.abs(weights[0][name] - weights[1][name]).max()) for name in weights[0]) <= 1e-10
    stored = [load_stored(run / name).parallelism for name in ("config-1.yaml", "config-2.yaml", "config.yaml")]
    assert [(each.name, each.workers) for each in stored] == [("sync_data", 4), ("hybrid", 2), ("single", 1)]
    assert summary_of(run).run_id == load(run / "checkpoints" / "step-3").manifest.meta.run_id
    expect_same_curves(uninterrupted / "metrics.jsonl", run / "metrics.jsonl")


def expect_same_curves(expected: Path, found: Path) -> None:
    """Require the losses and accuracies of one run in the other, each after the same number of updates."""

    def curve(path: Path, name: str) -> dict[int, float]:
        return {record.step: record.values[name] for record in read_metrics(path) if name in record.values}

    for name in ("train/loss", "val/loss", "val/accuracy", "test/loss", "test/accuracy"):
        ours, theirs = curve(found, name), curve(expected, name)
        assert ours.keys() == theirs.keys()
        assert list(ours.values()) == pytest.approx(list(theirs.values()), abs=1e-10)
