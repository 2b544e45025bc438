"""Strategies on worker processes: slow workers and networks change no result; compression changes losses slightly."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.commands.train import results_table
from runner.data.source import source_from_config
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import scalar
from runner.records.decisions import read_decisions
from runner.records.summary import Summary
from runner.training.build import build, source_document
from tests.integration.command import QUIET, run_command, succeed, summary_of
from tests.small_runs import small_config, typed

LBFGS = (
    *QUIET,
    *typed(
        "model=mlp model.hidden=[8] data=digits optimizer=lbfgs optimizer.history=2 schedule=constant "
        "precision=float64 train.batch_size=128 train.epochs=null train.eval_every=100 train.log_every=1 "
        "hydra.run.dir=run"
    ),
)
SANDBLASTER = ("parallelism=sandblaster", "parallelism.servers=2", "parallelism.portions_per_worker=4")
SLOW_WORKER = typed(
    "cluster.emulate=true cluster.stragglers.distribution=constant cluster.stragglers.median_ms=150 "
    "cluster.stragglers.workers=[0]"
)


def finished(folder: Path, *overrides: str) -> Summary:
    """Train into the directory ``run`` of a folder, and return the summary."""
    folder.mkdir(exist_ok=True)
    succeed(folder, *overrides)
    return summary_of(folder / "run")


def curve(folder: Path) -> list[dict[str, Any]]:
    """Return the logged values of each L-BFGS iteration."""
    logged = [json.loads(line)["values"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [values for values in logged if "train/objective" in values]


@pytest.mark.slow
def test_lbfgs_with_a_slow_process_and_a_resume_equals_single_bit_for_bit(tmp_path: Path) -> None:
    single, slow = tmp_path / "single", tmp_path / "slow"
    expected = finished(single, *LBFGS, "parallelism=single", "train.microbatches=8", "train.steps=6")
    finished(slow, *LBFGS, *SANDBLASTER, *SLOW_WORKER, "train.steps=4")
    found = finished(slow, "resume=run", "train.steps=6")
    assert found.weights_sha256 == expected.weights_sha256
    assert [each["train/objective"] for each in curve(slow)] == [each["train/objective"] for each in curve(single)]
    assert sum(each["comm/duplicated_portions"] for each in curve(slow)) > 0
    assert len(found.bytes_sent_per_worker) == 2 + 2


BACKUP_STEPS = 12
BACKED = (
    *QUIET,
    *typed(
        "model=mlp model.hidden=[8] data=digits train.batch_size=8 schedule=constant parallelism.workers=2 "
        "parallelism.combine=parameter_server parallelism.backup_workers=1 parallelism.servers=2 "
        "train.eval_every=6 hydra.run.dir=run"
    ),
)
STRAGGLERS = (
    *("cluster.emulate=true", "cluster.stragglers.distribution=lognormal"),
    *("cluster.stragglers.median_ms=10", "cluster.stragglers.sigma=1.5"),
)


@pytest.mark.slow
def test_a_resumed_run_with_slow_workers_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    slow, replayed = tmp_path / "slow", tmp_path / "replayed"
    finished(slow, *BACKED, *STRAGGLERS, f"train.steps={BACKUP_STEPS // 2}")
    first = read_decisions(slow / "run" / "contributors.jsonl")
    summary = finished(slow, "resume=run", f"train.steps={BACKUP_STEPS}")
    lines = read_decisions(slow / "run" / "contributors.jsonl")
    assert lines[: BACKUP_STEPS // 2] == first
    assert [line["step"] for line in lines] == list(range(BACKUP_STEPS))
    dropped = [each for line in lines for each in line["dropped"]]
    for line in lines:
        of_step = [*line["contributors"], *(each["worker"] for each in line["dropped"])]
        assert len(set(of_step)) == len(of_step)
        assert set(of_step) <= {0, 1, 2}
    assert summary.workers == 3
    assert sum(summary.dropped_shares.values()) == len(dropped)
    assert sum(summary.dropped_examples.values()) == 4 * len(dropped)

    record = slow / "run" / "contributors.jsonl"
    again = finished(replayed, *BACKED, f"train.steps={BACKUP_STEPS}", f"parallelism.replay={record}")
    assert again.weights_sha256 == summary.weights_sha256
    assert again.final["train/loss"] == summary.final["train/loss"]
    assert again.dropped_shares == {}
    contributors = [line["contributors"] for line in read_decisions(replayed / "run" / "contributors.jsonl")]
    assert contributors == [line["contributors"] for line in lines]
    assert not list((slow / "run").glob("endings-*")), "the record of contributors is enough to repeat the run"


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_traced_to_its_node_by_repeating_steps(tmp_path: Path) -> None:
    command = run_command(tmp_path, *BACKED, *STRAGGLERS, f"train.steps={BACKUP_STEPS}", "optimizer.lr=1e30")
    assert command.code == 5
    assert "repeating steps 0 to" in (tmp_path / "run" / "run.log").read_text()
    assert "no earlier node produced such values" in command.errors


LATENCY_S, DELAY_S, EMULATED_STEPS = 0.02, 0.03, 5
SLOW = (
    "cluster=slow_network",
    "cluster.bandwidth_mbit=1",
    f"cluster.latency_ms={LATENCY_S * 1e3}",
    "cluster.stragglers.distribution=constant",
    f"cluster.stragglers.median_ms={DELAY_S * 1e3}",
    "cluster.stragglers.workers=[1]",
)
EMULATED = "1 Mbit/s, 20 ms, constant delay of worker 1 with median 30 ms"


def run_of(folder: Path, *overrides: str) -> Summary:
    """Train two workers for a few steps; return the summary, and require that the output contains its results."""
    folder.mkdir(exist_ok=True)
    small = typed(
        f"model=mlp model.hidden=[8] data=digits tracking=none tracking.pictures=false train.steps={EMULATED_STEPS}"
    )
    command = succeed(folder, *small, *overrides, "hydra.run.dir=run")
    summary = summary_of(folder / "run")
    assert results_table(summary) in command.output
    return summary


@pytest.mark.slow
def test_emulated_delays_change_the_step_time_but_not_the_weights(tmp_path: Path) -> None:
    plain, slow = run_of(tmp_path / "plain"), run_of(tmp_path / "slow", *SLOW)
    assert plain.weights_sha256 is not None
    assert slow.weights_sha256 == plain.weights_sha256
    assert slow.bytes_sent_per_worker == plain.bytes_sent_per_worker
    assert (plain.emulated, slow.emulated) == ("", EMULATED)
    assert f"emulated: {EMULATED}" in (tmp_path / "slow" / "run" / "run.log").read_text()
    assert "emulated: " not in (tmp_path / "plain" / "run" / "run.log").read_text()
    # The slow worker starts late. Then the two workers send each other the whole gradient.
    gradient_bytes = slow.bytes_sent_per_worker[0] / EMULATED_STEPS
    assert slow.step_time_s["p10"] >= DELAY_S + LATENCY_S + gradient_bytes * 8 / 1e6


STEPS = 120


def losses(*overrides: str) -> list[float]:
    """Train with two workers in this process, and return the loss of every step."""
    two = typed("data=digits parallelism=sync_data parallelism.workers=2 train.batch_size=64")
    experiment = build(small_config(*two, *overrides))
    with (
        source_from_config(**source_document(experiment.config)) as source,
        closing(LocalSession(experiment.program, experiment.cluster, load_kernels(), source)) as session,
    ):
        session.run("init")
        rate = scalar(experiment.learning_rate(0), "float32")
        return [
            float(session.run("train", step=k, feeds={"step": scalar(k, "int64"), "learning_rate": rate})["loss"])
            for k in range(STEPS)
        ]


@pytest.mark.parametrize("model", ["mlp", pytest.param("lenet", marks=pytest.mark.slow)])
def test_compressed_training_reaches_a_similar_loss(model: str) -> None:
    shape = "model.hidden=[32]" if model == "mlp" else "model.units=32"
    plain, lossy = (losses(f"model={model}", shape, f"cluster.compression={c}") for c in ("none", "high16"))
    assert lossy[0] == plain[0], "nothing has been sent before the first loss"
    assert lossy[1:] != plain[1:]
    assert np.mean(lossy[-5:]) < 0.7 * lossy[0]
    assert np.mean(lossy[-5:]) == pytest.approx(np.mean(plain[-5:]), rel=0.05)


def test_two_bytes_per_value_are_sent_between_processes(tmp_path: Path) -> None:
    summary = run_of(tmp_path, "cluster.compression=high16")
    # In each step, the first of two workers sends its whole gradient.
    values = 64 * 8 + 8 + 8 * 10 + 10
    assert summary.bytes_sent_per_worker[0] == EMULATED_STEPS * values * 2
