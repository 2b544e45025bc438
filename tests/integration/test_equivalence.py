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
    "tracking.pictures=false",
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


def test_pooled_statistics_of_batch_normalisation_equal_single(tmp_path: Path) -> None:
    pooled = ("parallelism=sync_data", "parallelism.workers=3", "parallelism.statistics=pooled")
    runs = {"one": ("parallelism=single",), "three": pooled}
    for name, overrides in runs.items():
        (tmp_path / name).mkdir()
        train(tmp_path / name, "model=cifar_convnet", *overrides)
    expected, found = (load(tmp_path / name / "run" / "checkpoints" / "step-10").variables for name in runs)
    assert any(name.endswith("moving_variance") for name in found)
    assert max(float(np.abs(expected[name] - found[name]).max()) for name in expected) <= 1e-10


def test_parameter_servers_equal_single_in_as_many_microbatches(tmp_path: Path) -> None:
    served = ("parallelism=sync_data", "parallelism.combine=parameter_server", "parallelism.servers=2")
    runs = {"served": served, "parts": ("parallelism=single", "train.microbatches=2")}
    for name, overrides in runs.items():
        (tmp_path / name).mkdir()
        train(tmp_path / name, *overrides)
    found, expected = (summary_of(tmp_path / name / "run") for name in runs)
    assert found.weights_sha256 == expected.weights_sha256
    assert len(found.bytes_sent_per_worker) == 2 + 2
    assert set(found.peak_memory_bytes) == {"master", "worker-0", "worker-1", "ps-0", "ps-1"}
