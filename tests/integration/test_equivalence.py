"""The contract of ``sync_data`` on real processes: the weights of ``single``, to the bit where that is promised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import load
from tests.integration.command import run_command, summary_of

TEN_STEPS = (
    "experiment=digits_equivalence",
    "tracking=none",
    "train.steps=10",
    "cluster.threads_per_worker=1",
    "hydra.run.dir=run",
)


def train(folder: Path, *overrides: str) -> Path:
    command = run_command(folder, *TEN_STEPS, *overrides)
    assert command.finish() == 0, command.errors
    return folder / "run"


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("single"), "parallelism=single")


@pytest.mark.parametrize("workers", [2, 3])
def test_sync_data_equals_single(single: Path, tmp_path: Path, workers: int) -> None:
    (tmp_path / "sync").mkdir()
    (tmp_path / "parts").mkdir()
    sync = train(tmp_path / "sync", "parallelism=sync_data", f"parallelism.workers={workers}")
    expected = load(single / "checkpoints" / "step-10").variables
    found = load(sync / "checkpoints" / "step-10").variables
    assert expected.keys() == found.keys()
    largest = max(float(np.abs(expected[name] - found[name]).max()) for name in expected)
    assert 0 < largest <= 1e-10
    parts = train(tmp_path / "parts", "parallelism=single", f"train.microbatches={workers}")
    assert summary_of(sync).weights_sha256 == summary_of(parts).weights_sha256
