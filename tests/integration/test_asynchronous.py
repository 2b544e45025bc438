"""``async_data`` on worker processes: the updates of several workers are repeated bit for bit."""

import json
from pathlib import Path

import pytest

from tests.integration.command import QUIET, succeed, summary_of

TEN_STEPS = (
    *QUIET,
    "train.steps=10",
    *("parallelism=async_data", "parallelism.workers=3", "parallelism.servers=2"),
)


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
    succeed(tmp_path, *TEN_STEPS, *settings, "hydra.run.dir=first")
    succeed(tmp_path, *TEN_STEPS, *settings, "hydra.run.dir=second", "parallelism.replay=first/endings-1.jsonl")
    first, second = summary_of(tmp_path / "first"), summary_of(tmp_path / "second")
    assert second.weights_sha256 == first.weights_sha256
    assert set(first.peak_memory_bytes) == {"master", "worker-0", "worker-1", "worker-2", "ps-0", "ps-1"}
    assert set(second.peak_memory_bytes) == {"main"}
    decided = [json.loads((tmp_path / run / "asynchronous.json").read_text()) for run in ("first", "second")]
    assert decided[0] == decided[1]
