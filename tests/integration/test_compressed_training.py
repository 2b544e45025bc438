"""Runs with compressed transfers: about the same losses from half the bytes."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from runner.data.source import source_from_config
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import scalar
from runner.training.build import build
from tests.integration.command import succeed, summary_of
from tests.small_runs import small_config

STEPS = 120


def losses(*overrides: str) -> list[float]:
    """The loss of every step of two workers in this process."""
    config = small_config(
        "data=digits",
        "parallelism=sync_data",
        "parallelism.workers=2",
        "train.batch_size=64",
        *overrides,
    )
    experiment = build(config)
    document = {
        "config": dataclasses.asdict(config.data),
        "seed": config.seed,
        "batch_size": config.train.batch_size,
        "eval_batch_size": config.train.eval_batch_size,
        "dtype": "float32",
    }
    with source_from_config(**document) as source:
        session = LocalSession(experiment.program, experiment.cluster, load_kernels(), source)
        try:
            session.run("init")
            rate = scalar(experiment.learning_rate(0), "float32")
            return [
                float(session.run("train", step=k, feeds={"step": scalar(k, "int64"), "learning_rate": rate})["loss"])
                for k in range(STEPS)
            ]
        finally:
            session.close()


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_it_learns_about_as_well(model: str) -> None:
    shape = "model.hidden=[32]" if model == "mlp" else "model.units=32"
    plain, lossy = (losses(f"model={model}", shape, f"cluster.compression={c}") for c in ("none", "high16"))
    assert lossy[0] == plain[0], "nothing has been sent before the first loss"
    assert lossy[1:] != plain[1:]
    assert np.mean(lossy[-5:]) < 0.7 * lossy[0]
    assert np.mean(lossy[-5:]) == pytest.approx(np.mean(plain[-5:]), rel=0.05)


def test_two_bytes_of_each_value_go_between_processes(tmp_path: Path) -> None:
    overrides = (
        "model=mlp",
        "model.hidden=[8]",
        "data=digits",
        "tracking=none",
        "tracking.pictures=false",
        "train.steps=3",
        "train.epochs=null",
    )
    succeed(tmp_path, *overrides, "cluster.compression=high16", "hydra.run.dir=run")
    # In a step the first of two workers sends one half of the gradient and one half of the sum.
    values = 64 * 8 + 8 + 8 * 10 + 10
    assert summary_of(tmp_path / "run").bytes_sent_per_worker[0] == 3 * values * 2
