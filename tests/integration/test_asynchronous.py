"""``async_data`` on real processes: one worker is ``single``, and what several did is repeated to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.command import run_command, summary_of

TEN_STEPS = (
    "tracking=none",
    "tracking.pictures=false",
    "train.steps=10",
    "cluster.threads_per_worker=1",
    "hydra.run.dir=run",
)


def train(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    command = run_command(folder, *TEN_STEPS, *overrides)
    assert command.finish() == 0, command.errors
    return folder / "run"


def test_one_worker_that_sees_its_own_writes_is_single(tmp_path: Path) -> None:
    single = train(tmp_path / "single", "parallelism=single")
    settings = ("parallelism.workers=1", "parallelism.servers=2", "parallelism.loop=sequential")
    served = train(tmp_path / "served", "parallelism=async_data", *settings)
    assert summary_of(served).weights_sha256 == summary_of(single).weights_sha256


@pytest.mark.parametrize(
    "settings",
    [
        ("model=lenet", "optimizer=adagrad"),
        ("model=cifar_convnet", "parallelism.n_fetch=2", "parallelism.n_push=3", "train.eval_every=4"),
        ("model=mlp", "parallelism.loop=direct", "optimizer=adam", "parallelism.warmstart_steps=3"),
    ],
    ids=["overlapped", "rare", "direct"],
)
def test_a_run_is_repeated_from_its_endings_in_one_process(settings: tuple[str, ...], tmp_path: Path) -> None:
    shape = ("parallelism=async_data", "parallelism.workers=3", "parallelism.servers=2")
    first = train(tmp_path / "first", *shape, *settings)
    second = train(tmp_path / "second", *shape, *settings, f"parallelism.replay={first / 'endings-1.jsonl'}")
    assert summary_of(second).weights_sha256 == summary_of(first).weights_sha256
    assert set(summary_of(first).peak_memory_bytes) == {"master", "worker-0", "worker-1", "worker-2", "ps-0", "ps-1"}
    assert set(summary_of(second).peak_memory_bytes) == {"main"}
    decided = [json.loads((folder / "asynchronous.json").read_text()) for folder in (first, second)]
    assert decided[0] == decided[1]
