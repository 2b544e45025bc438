"""Training on records: under every strategy, and after a resume, the weights are those of training on arrays."""

from pathlib import Path

import pytest

from runner.data.convert import convert
from runner.data.digits import Digits
from tests.small_runs import train, typed

STRATEGIES = {
    "single": "train.microbatches=2",
    "sync_data": "parallelism.workers=3",
    "ring": "parallelism=sync_data parallelism.workers=2 parallelism.combine=ring_all_reduce",
    "model": "parallelism.workers=2",
    "hybrid": "parallelism.workers=2",
    "async_data": "parallelism.workers=2 parallelism.virtual_time=true",
    "sandblaster": "parallelism.workers=2 optimizer=lbfgs train.batch_size=200",
}
AUGMENTED = (
    "schedule=constant",
    "data.augment.crop_padding=1",
    "data.val_fraction=0.1",
    "train.steps=4",
    "checkpoint.every_steps=2",
)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return the overrides that choose the records of the digits."""
    folder = tmp_path_factory.mktemp("digits")
    convert(Digits(), folder / "records", (5, 2), report=lambda line: None)
    return "data=tfrecord", f"data.path={folder / 'records'}", f"data.cache_dir={folder / 'cache'}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "sandblaster" else []) for name in STRATEGIES]
)
def test_every_strategy_gives_the_weights_of_training_on_arrays(
    name: str, records: tuple[str, ...], tmp_path: Path
) -> None:
    chosen = (*typed(STRATEGIES[name]), *AUGMENTED)
    if not STRATEGIES[name].startswith("parallelism="):
        chosen = (f"parallelism={name}", *chosen)
    if name not in ("single", "sandblaster"):
        chosen = (*chosen, "cluster.one_process=true")
    arrays = train(tmp_path / "arrays", *chosen)
    streamed = train(tmp_path / "records", *chosen, *records, "data.threads=2", "data.prefetch=3")
    assert streamed.weights_sha256 == arrays.weights_sha256
    assert streamed.final["test/loss"] == arrays.final["test/loss"]


def test_a_resumed_run_on_records_ends_with_the_weights_of_a_whole_run(
    records: tuple[str, ...], tmp_path: Path
) -> None:
    windowed = (*AUGMENTED, *records, "data.shuffle.window=50", "data.shuffle.interleave=2")
    whole = train(tmp_path / "whole", *windowed, "train.steps=9")
    train(tmp_path / "run", *windowed, "train.steps=5")
    resumed = train(tmp_path / "run", *windowed, "train.steps=9", "data.threads=2", resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.weights_sha256 != train(tmp_path / "full", *AUGMENTED, *records, "train.steps=9").weights_sha256
