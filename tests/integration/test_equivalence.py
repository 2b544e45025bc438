"""Strategies on worker processes equal ``single``: to 1e-10 in float64, or bit for bit where that is promised."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import load
from tests.integration.command import QUIET, succeed, summary_of

STEPS = 4
COMMON = (
    *QUIET,
    "experiment=digits_equivalence",
    "schedule=constant",
    "train.batch_size=12",
)
Train = Callable[..., Path]

SYNC = ("parallelism=sync_data", "parallelism.workers=2")
SYNC_OF_THREE = ("parallelism=sync_data", "parallelism.workers=3")
SERVED = (*SYNC, "parallelism.combine=parameter_server", "parallelism.servers=2")
HYBRID = ("parallelism=hybrid", "parallelism.workers=3", "parallelism.scheme=c")
ASYNC = ("parallelism=async_data", "parallelism.workers=1", "parallelism.servers=2", "parallelism.loop=sequential")
SHARDED = (
    *("model=mlp", "parallelism=model", "parallelism.workers=3", "parallelism.concurrent_steps=2"),
    "parallelism.shard={fc1: column, fc2: row, fc3: column}",
)
POOLED = ("model=cifar_convnet", *SYNC_OF_THREE, "parallelism.statistics=pooled")


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Return the directory of a run with these overrides, which is trained once."""
    trained: dict[tuple[str, ...], Path] = {}

    def train(*overrides: str) -> Path:
        if overrides not in trained:
            folder = tmp_path_factory.mktemp("run")
            succeed(folder, *COMMON, f"train.steps={STEPS}", *overrides, "hydra.run.dir=run")
            trained[overrides] = folder / "run"
        return trained[overrides]

    return train


@pytest.mark.parametrize(
    ("strategy", "model"),
    [(SYNC, ()), (SYNC_OF_THREE, ()), (HYBRID, ()), (SHARDED, ("model=mlp",)), (POOLED, ("model=cifar_convnet",))],
    ids=["sync_data of two", "sync_data of three", "hybrid", "cut layers", "pooled statistics"],
)
def test_a_strategy_equals_single_to_rounding(train: Train, strategy: tuple[str, ...], model: tuple[str, ...]) -> None:
    runs = train(*model, "parallelism=single"), train(*strategy)
    expected, found = (load(run / "checkpoints" / f"step-{STEPS}").variables for run in runs)
    assert list(expected) == list(found)
    assert 0 < max(float(np.abs(expected[name] - found[name]).max()) for name in expected) <= 1e-10
    assert min(summary_of(runs[1]).bytes_sent_per_worker) > 0
    assert any(name.endswith("moving_variance") for name in found) == (strategy == POOLED)


@pytest.mark.parametrize(
    ("strategy", "microbatches", "processes"),
    [
        (SYNC, 2, {"worker-0", "worker-1"}),
        (SYNC_OF_THREE, 3, {"worker-0", "worker-1", "worker-2"}),
        (SERVED, 2, {"worker-0", "worker-1", "ps-0", "ps-1"}),
        (ASYNC, 1, {"worker-0", "ps-0", "ps-1"}),
    ],
    ids=["sync_data of two", "sync_data of three", "parameter servers", "one asynchronous worker"],
)
def test_a_strategy_equals_single_in_as_many_microbatches_bit_for_bit(
    train: Train, strategy: tuple[str, ...], microbatches: int, processes: set[str]
) -> None:
    parts = (
        ("parallelism=single",) if microbatches == 1 else ("parallelism=single", f"train.microbatches={microbatches}")
    )
    found, expected = summary_of(train(*strategy)), summary_of(train(*parts))
    assert found.weights_sha256 == expected.weights_sha256
    assert set(found.peak_memory_bytes) == {"master", *processes}
    assert len(found.bytes_sent_per_worker) == len(processes)


def test_a_run_with_cut_layers_resumes_to_the_same_bits(train: Train, tmp_path: Path) -> None:
    succeed(tmp_path, *COMMON, *SHARDED, "train.steps=2", "hydra.run.dir=half")
    succeed(tmp_path, "resume=half", f"train.steps={STEPS}")
    assert summary_of(tmp_path / "half").weights_sha256 == summary_of(train(*SHARDED)).weights_sha256


def test_partial_updates_of_dense_layers_train(train: Train) -> None:
    summary = summary_of(train("parallelism=hybrid", "parallelism.fc_batch=6", "parallelism.dense_lr_factor=0.5"))
    assert (summary.strategy, summary.steps) == ("hybrid", STEPS)
