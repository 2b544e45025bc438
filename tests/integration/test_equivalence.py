"""Strategies are equivalent to ``single``, even after a resume, and a repeated run has the same weights."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import load
from runner.config.configuration import load_stored
from runner.tracking import read_metrics
from tests.integration.command import QUIET, run_command, succeed, summary_of
from tests.small_runs import typed

STEPS = 4
COMMON = (*QUIET, "experiment=digits_equivalence", "schedule=constant", "train.batch_size=12")
Train = Callable[..., Path]

SYNC = ("parallelism=sync_data", "parallelism.workers=2")
SERVED = (*SYNC, "parallelism.combine=parameter_server", "parallelism.servers=2")
HYBRID = ("parallelism=hybrid", "parallelism.workers=3", "parallelism.scheme=c")
ASYNC = ("parallelism=async_data", "parallelism.workers=1", "parallelism.servers=2", "parallelism.loop=sequential")
SHARDED = (
    *("model=mlp", "parallelism=model", "parallelism.workers=3", "parallelism.concurrent_steps=2"),
    "parallelism.shard={fc1: column, fc2: row, fc3: column}",
)
POOLED = ("model=cifar_convnet", *SYNC, "parallelism.statistics=pooled")


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Return a function that trains a run, but only once for equal overrides, and returns the run's directory."""
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
    [
        (SYNC, ()),
        (HYBRID, ()),
        (SHARDED, ("model=mlp",)),
        pytest.param(POOLED, ("model=cifar_convnet",), marks=pytest.mark.slow),
    ],
    ids=["sync_data", "hybrid", "split layers", "pooled statistics"],
)
def test_a_strategy_nearly_equals_single(train: Train, strategy: tuple[str, ...], model: tuple[str, ...]) -> None:
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
        (SERVED, 2, {"worker-0", "worker-1", "ps-0", "ps-1"}),
        (ASYNC, 1, {"worker-0", "ps-0", "ps-1"}),
    ],
    ids=["sync_data", "parameter servers", "one asynchronous worker"],
)
def test_a_strategy_equals_single_with_a_microbatch_for_each_worker_bit_for_bit(
    train: Train, strategy: tuple[str, ...], microbatches: int, processes: set[str]
) -> None:
    parts = (
        ("parallelism=single",) if microbatches == 1 else ("parallelism=single", f"train.microbatches={microbatches}")
    )
    found, expected = summary_of(train(*strategy)), summary_of(train(*parts))
    assert found.weights_sha256 == expected.weights_sha256
    assert set(found.peak_memory_bytes) == {"master", *processes}
    assert len(found.bytes_sent_per_worker) == len(processes)


RESUMED = (
    *QUIET,
    *typed(
        "hydra.run.dir=run model=lenet precision=float64 optimizer=momentum schedule=constant "
        "data.val_fraction=0.2 train.batch_size=8 train.eval_every=3 train.log_every=1"
    ),
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run that trained in one process without interruption."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    succeed(folder, *RESUMED, "parallelism=single", "train.steps=9")
    return folder / "run"


def test_a_run_continues_with_other_numbers_of_workers_and_then_in_one_process(
    uninterrupted: Path, tmp_path: Path
) -> None:
    for arguments in (
        (*RESUMED, "parallelism=sync_data", "parallelism.workers=3", "train.steps=3"),
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
    assert [(each.name, each.workers) for each in stored] == [("sync_data", 3), ("hybrid", 2), ("single", 1)]
    assert summary_of(run).run_id == load(run / "checkpoints" / "step-3").manifest.meta.run_id
    expect_same_curves(uninterrupted / "metrics.jsonl", run / "metrics.jsonl")


def expect_same_curves(expected: Path, found: Path) -> None:
    """Require equal losses and accuracies after the same numbers of updates."""

    def curve(path: Path, name: str) -> dict[int, float]:
        return {record.step: record.values[name] for record in read_metrics(path) if name in record.values}

    for name in ("train/loss", "val/loss", "val/accuracy", "test/loss", "test/accuracy"):
        ours, theirs = curve(found, name), curve(expected, name)
        assert ours.keys() == theirs.keys()
        assert list(ours.values()) == pytest.approx(list(theirs.values()), abs=1e-10)


SHORT = (*QUIET, "train.steps=10", "train.eval_every=1000", "hydra.run.dir=first")
RACING = ("parallelism=async_data", "parallelism.workers=3", "parallelism.servers=2")


@pytest.mark.parametrize(
    ("settings", "record"),
    [
        ((*RACING, "model=mlp", "optimizer=adagrad"), "endings-1.jsonl"),
        pytest.param(
            (*RACING, *typed("model=cifar_convnet parallelism.n_fetch=2 parallelism.n_push=3 train.eval_every=4")),
            "endings-1.jsonl",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (*RACING, *typed("model=mlp parallelism.loop=direct optimizer=adam parallelism.warmstart_steps=3")),
            "endings-1.jsonl",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            typed("model=mlp parallelism.combine=parameter_server parallelism.backup_workers=1"),
            "contributors.jsonl",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["asynchronous", "rare fetches", "direct", "backup workers"],
)
def test_a_repeated_run_has_the_same_weights(settings: tuple[str, ...], record: str, tmp_path: Path) -> None:
    """``rerun`` replays the record of the order of racing workers. It replays asynchronous runs in one process."""
    succeed(tmp_path, *SHORT, *settings)
    again = succeed(tmp_path, "rerun", "first", "--output", "second")
    assert "\nthe same weights as run " in again.output
    assert f"first/{record}" in again.errors
    first, second = summary_of(tmp_path / "first"), summary_of(tmp_path / "second")
    assert second.weights_sha256 == first.weights_sha256
    assert second.repeats == first.run_id
    if record == "endings-1.jsonl":
        assert set(first.peak_memory_bytes) == {"master", "worker-0", "worker-1", "worker-2", "ps-0", "ps-1"}
        assert set(second.peak_memory_bytes) == {"main"}
        decided = [json.loads((tmp_path / run / "asynchronous.json").read_text()) for run in ("first", "second")]
        assert decided[0] == decided[1]


def test_a_run_is_found_by_its_id_in_the_store(tmp_path: Path) -> None:
    one = ("model=mlp", "parallelism=single", "cluster.threads_per_worker=1", "train.steps=2", "hydra.run.dir=far/away")
    assert "weights_sha256" in run_command(tmp_path, *one).output
    run_id = summary_of(tmp_path / "far" / "away").run_id
    succeed(tmp_path, "rerun", run_id, "--output", "second")
    compared = succeed(tmp_path, "compare", run_id, "second")
    assert "equal entries: " in compared.output
