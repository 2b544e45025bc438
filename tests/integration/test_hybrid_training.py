"""The contract of ``hybrid`` on real processes: the weights of ``single``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from runner.checkpoint import load
from tests.integration.command import run_command, summary_of

FIVE_STEPS = (
    "experiment=digits_equivalence",
    "model=lenet",
    "tracking=none",
    "tracking.pictures=false",
    "train.steps=5",
    "train.batch_size=12",
    "cluster.threads_per_worker=1",
    "hydra.run.dir=run",
)


def train(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    command = run_command(folder, *FIVE_STEPS, *overrides)
    assert command.finish() == 0, command.errors
    return folder / "run"


def test_hybrid_equals_single(tmp_path: Path) -> None:
    single = train(tmp_path / "single", "parallelism=single")
    hybrid = train(tmp_path / "hybrid", "parallelism=hybrid", "parallelism.workers=3", "parallelism.scheme=c")
    expected, found = (load(run / "checkpoints" / "step-5").variables for run in (single, hybrid))
    assert list(expected) == list(found)
    largest = max(float(np.abs(expected[name] - found[name]).max()) for name in expected)
    assert 0 < largest <= 1e-10
    assert len(summary_of(hybrid).bytes_sent_per_worker) == 3


def test_partial_updates_of_dense_layers_train(tmp_path: Path) -> None:
    parts = ("parallelism=hybrid", "parallelism.fc_batch=6", "parallelism.dense_lr_factor=0.5")
    summary = summary_of(train(tmp_path / "parts", *parts))
    assert summary.strategy == "hybrid"
    assert summary.steps == 5
