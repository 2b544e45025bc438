"""Sandblaster on processes, one of them slow, stopped halfway and resumed: the numbers of ``single``."""

import json
from pathlib import Path
from typing import Any

from tests.integration.command import QUIET, succeed, summary_of

SMALL = (
    *QUIET,
    "model=mlp",
    "model.hidden=[8]",
    "data=digits",
    "optimizer=lbfgs",
    "optimizer.history=2",
    "schedule=constant",
    "precision=float64",
    "train.batch_size=128",
    "train.epochs=null",
    "train.eval_every=100",
    "train.log_every=1",
)
SANDBLASTER = ("parallelism=sandblaster", "parallelism.servers=2", "parallelism.portions_per_worker=4")
SLOW = (
    "cluster.emulate=true",
    "cluster.stragglers.distribution=constant",
    "cluster.stragglers.median_ms=150",
    "cluster.stragglers.workers=[0]",
)


def train(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    succeed(folder, *overrides, "hydra.run.dir=run")
    return folder / "run"


def curve(run: Path) -> list[dict[str, Any]]:
    """What was logged of each iteration."""
    logged = [json.loads(line)["values"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [values for values in logged if "train/objective" in values]


def test_with_a_slow_process_and_a_stop_it_makes_the_iterations_of_single_to_the_bit(tmp_path: Path) -> None:
    single = train(tmp_path / "single", *SMALL, "parallelism=single", "train.microbatches=8", "train.steps=6")
    slow = train(tmp_path / "slow", *SMALL, *SANDBLASTER, *SLOW, "train.steps=4")
    succeed(tmp_path / "slow", f"resume={slow}", "train.steps=6")
    assert summary_of(slow).weights_sha256 == summary_of(single).weights_sha256
    assert [each["train/objective"] for each in curve(slow)] == [each["train/objective"] for each in curve(single)]
    assert sum(each["comm/duplicated_portions"] for each in curve(slow)) > 0
    assert len(summary_of(slow).bytes_sent_per_worker) == 2 + 2
