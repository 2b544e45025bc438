"""Dense layers cut over real processes: the checkpoints of ``single``, and gone on with as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from runner.checkpoint import load
from tests.integration.command import run_command, summary_of

COMMON = (
    "experiment=digits_equivalence",
    "model=mlp",
    "schedule=constant",
    "tracking=none",
    "tracking.pictures=false",
    "train.batch_size=12",
    "cluster.threads_per_worker=1",
)
CUT = (
    *("parallelism=model", "parallelism.workers=3", "parallelism.concurrent_steps=2"),
    "parallelism.shard={fc1: column, fc2: row, fc3: column}",
)


def train(folder: Path, run: str, *overrides: str, steps: int) -> Path:
    command = run_command(folder, *COMMON, f"hydra.run.dir={run}", f"train.steps={steps}", *overrides)
    assert command.finish() == 0, command.errors
    return folder / run


def test_checkpoints_are_those_of_single_and_a_run_goes_on(tmp_path: Path) -> None:
    single = train(tmp_path, "single", "parallelism=single", steps=4)
    cut = train(tmp_path, "cut", *CUT, steps=4)
    expected, found = (load(run / "checkpoints" / "step-4").variables for run in (single, cut))
    assert list(expected) == list(found)
    assert 0 < max(float(np.abs(expected[name] - found[name]).max()) for name in expected) <= 1e-10
    assert min(summary_of(cut).bytes_sent_per_worker) > 0
    half = train(tmp_path, "half", *CUT, steps=2)
    command = run_command(tmp_path, "resume=half", "train.steps=4")
    assert command.finish() == 0, command.errors
    assert summary_of(half).weights_sha256 == summary_of(cut).weights_sha256
