"""A run of ``async_data`` in one process: its files, its repetition, and refused settings."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.commands.explain import explain
from runner.commands.explanation.devices import plans_of, training_plans
from runner.engine.run.step_driver import StepDriver
from runner.errors import ConfigError, Interrupted, RunnerError
from runner.records.record import Record
from runner.records.summary import Summary
from runner.tracking import read_metrics
from runner.training import trainer
from runner.training.build import build
from runner.training.experiment import Experiment
from runner.training.run import run
from tests.small_runs import small_config

Trained = Callable[..., Path]

ASYNC = ("parallelism=async_data", "parallelism.workers=2", "parallelism.servers=2", "train.steps=4")
VIRTUAL = "parallelism.virtual_time=true"


def train(folder: Path, *overrides: str, resume: bool = False) -> Summary:
    return run(small_config(*ASYNC, *overrides), folder, overrides=[], resume=resume)


def decided(folder: Path) -> Any:
    return json.loads((folder / "asynchronous.json").read_text())


def test_a_run_in_virtual_time_leaves_its_endings_and_its_decisions(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", VIRTUAL, "train.log_every=2", "tracking.pictures=true")
    record = decided(tmp_path / "run")
    pushes = sum(record["replica_steps"])
    assert pushes >= 8
    assert [sum(shard.values()) for shard in record["staleness"]] == [pushes] * 2
    lines = (tmp_path / "run" / "endings-1.jsonl").read_text().splitlines()
    assert sum(line.startswith('["compute_') for line in lines) == pushes
    assert sum(line.startswith('["push_') for line in lines) == 2 * pushes
    assert {path.name for path in (tmp_path / "run" / "plots").iterdir()} >= {"staleness.png", "staleness.csv"}
    metrics = list(read_metrics(tmp_path / "run" / "metrics.jsonl"))
    assert all(
        "comm/staleness_mean" in each.values for each in metrics if "train/loss" in each.values and each.step > 1
    )
    assert summary.status == "finished"


def test_a_run_is_repeated_from_its_endings(tmp_path: Path) -> None:
    first = train(tmp_path / "first", VIRTUAL, "train.eval_every=2")
    endings = tmp_path / "first" / "endings-1.jsonl"
    replay = (f"parallelism.replay={endings}", "train.eval_every=2")
    second = train(tmp_path / "second", *replay)
    assert second.weights_sha256 == first.weights_sha256
    assert (tmp_path / "second" / "endings-1.jsonl").read_text() == endings.read_text()
    assert decided(tmp_path / "second") == decided(tmp_path / "first")


def test_a_record_that_was_cut_off_repeats_no_further(tmp_path: Path, trained: Trained) -> None:
    lines = (trained(*ASYNC, VIRTUAL) / "endings-1.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(lines[:9]))
    with pytest.raises(RunnerError, match=r"^the record (ends after|lacks)"):
        train(tmp_path / "second", f"parallelism.replay={tmp_path / 'cut.jsonl'}")


def test_a_resumed_run_records_its_endings_in_a_new_file(tmp_path: Path, trained: Trained) -> None:
    shutil.copytree(trained(*ASYNC, VIRTUAL), tmp_path / "run")
    summary = train(tmp_path / "run", VIRTUAL, "train.steps=6", resume=True)
    assert (summary.status, summary.steps) == ("finished", 6)
    assert json.loads((tmp_path / "run" / "endings-2.jsonl").read_text().splitlines()[0])["first_step"] == 4


CHECKPOINTED = (VIRTUAL, "optimizer=adam", "train.steps=9", "train.eval_every=2", "checkpoint.every_steps=3")


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("parallelism.workers=3", "parallelism.n_push=2", "parallelism.n_fetch=3"),
        ("parallelism/staleness=drop", "parallelism.loop=sequential", "parallelism.warmstart_steps=4"),
        ("checkpoint.keep_best=true", "checkpoint.every_steps=null", "checkpoint.keep=9", "data.val_fraction=0.1"),
    ],
    ids=" ".join,
)
def test_a_killed_run_in_virtual_time_resumes_to_the_weights_of_the_uninterrupted_one(
    tmp_path: Path, trained: Trained, settings: tuple[str, ...]
) -> None:
    whole = trained(*ASYNC, *CHECKPOINTED, *settings)
    uninterrupted = Summary.read(whole / "summary.json")
    saved = sorted(int(path.name.removeprefix("step-")) for path in (whole / "checkpoints").iterdir())
    assert len(saved) > 1
    for step in saved[:-1]:
        killed = shutil.copytree(whole, tmp_path / f"killed-{step}")
        for later in saved[saved.index(step) + 1 :]:
            shutil.rmtree(killed / "checkpoints" / f"step-{later}")
        (killed / "summary.json").unlink()
        resumed = train(killed, *CHECKPOINTED, *settings, resume=True)
        assert resumed.weights_sha256 == uninterrupted.weights_sha256
        assert resumed.final["test/loss"] == uninterrupted.final["test/loss"]


def test_a_run_with_checkpoints_is_repeated_from_its_endings(tmp_path: Path) -> None:
    settings = CHECKPOINTED[1:]
    first = train(tmp_path / "first", VIRTUAL, *settings, "parallelism.n_push=2")
    replay = f"parallelism.replay={tmp_path / 'first' / 'endings-1.jsonl'}"
    second = train(tmp_path / "second", replay, *settings, "parallelism.n_push=2")
    assert second.weights_sha256 == first.weights_sha256
    assert decided(tmp_path / "second") == decided(tmp_path / "first")


def stopped_after(step: int, folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> str:
    """Train until Ctrl-C comes in an update; return the message with which the run ends."""
    train_step = trainer.train_step

    def stopping(step_driver: StepDriver, experiment: Experiment, number: int, rate: float) -> Any:
        if number + 1 == step:
            os.kill(os.getpid(), signal.SIGINT)
        return train_step(step_driver, experiment, number, rate)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_step", stopping)
        with pytest.raises(Interrupted) as stopped:
            train(folder, *overrides)
    return str(stopped.value)


@pytest.mark.parametrize(("step", "saved"), [(2, []), (3, ["step-3"]), (5, ["step-3"])])
def test_a_stopped_run_in_virtual_time_saves_only_where_the_uninterrupted_one_does(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch, step: int, saved: list[str]
) -> None:
    uninterrupted = Summary.read(trained(*ASYNC, *CHECKPOINTED) / "summary.json")
    message = stopped_after(step, tmp_path / "run", monkeypatch, *CHECKPOINTED)
    assert message.startswith(f"stopped after step {step} of 9")
    assert ("without a checkpoint, because a checkpoint changes the order of virtual time" in message) == (step != 3)
    assert message.endswith(f"; continue with: runner resume={tmp_path / 'run'}")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == saved
    resumed = train(tmp_path / "run", *CHECKPOINTED, resume=True)
    assert resumed.weights_sha256 == uninterrupted.weights_sha256


def test_a_stopped_repetition_reports_that_it_cannot_be_resumed(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = f"parallelism.replay={trained(*ASYNC, VIRTUAL) / 'endings-1.jsonl'}"
    message = stopped_after(2, tmp_path / "run", monkeypatch, replay)
    assert message == f"stopped after step 2 of 4; start it again: a run with {replay} cannot be resumed"
    with pytest.raises(ConfigError, match="a run is repeated from its first step on; start it again"):
        train(tmp_path / "run", replay, resume=True)


def test_a_run_of_one_client_leaves_no_such_files(trained: Trained) -> None:
    assert {path.name for path in trained().iterdir()}.isdisjoint({"endings-1.jsonl", "asynchronous.json"})


def test_a_timeline_in_virtual_time_changes_no_bit(tmp_path: Path, trained: Trained) -> None:
    plain = Summary.read(trained(*ASYNC, VIRTUAL) / "summary.json")
    traced = train(tmp_path / "run", VIRTUAL, "trace=true", "trace_skip=1", "trace_steps=2")
    assert traced.weights_sha256 == plain.weights_sha256
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    rows = {event["args"]["name"].partition(" ")[0] for event in events if event["name"] == "thread_name"}
    assert {"steps", "compute_0", "compute_1", "push_0_0", "push_1_0"} <= rows
    summary = json.loads((tmp_path / "run" / "trace_summary.json").read_text())
    assert [each["step"] for each in summary["steps"]] == [1, 2]


@pytest.mark.parametrize("order", [VIRTUAL, "parallelism.replay=x"])
def test_an_emulated_network_in_one_process_is_refused(order: str) -> None:
    expected = r"^cluster.emulate=true with parallelism=async_data in one process: it has no link to emulate"
    with pytest.raises(ConfigError, match=expected):
        build(small_config(*ASYNC, order, "cluster=slow_network"))


@pytest.mark.parametrize("length", [("train.steps=3",), ("train.steps=null", "train.epochs=0.04")])
def test_a_run_that_is_all_warm_start_is_refused(length: tuple[str, ...]) -> None:
    """1438 examples in batches of 32, so 0.04 epochs are 1.8 updates."""
    expected = r"^parallelism\.warmstart_steps=3 with [23] updates in all: the first replica .* alone; use fewer"
    with pytest.raises(ConfigError, match=expected):
        build(small_config(*ASYNC, *length, "parallelism.warmstart_steps=3"))
    build(small_config(*ASYNC, "train.steps=4", "parallelism.warmstart_steps=3"))


def test_explain_describes_a_step_of_overlapping_clients() -> None:
    text = explain(small_config(*ASYNC))
    assert "each is counted as often as it runs on average when all workers are equally fast" in text
    assert "one evaluation" not in text
    experiment = build(small_config(*ASYNC))
    plans = training_plans(experiment, plans_of(experiment))
    assert len(plans) == 4
    for device, own in plans.items():
        each = [plan for plan, _ in own]
        row = next(line for line in text.splitlines() if line.startswith(device)).split()
        nodes, peak = sum(len(plan.instructions) for plan in each), max(plan.arena_bytes for plan in each)
        assert row[1:3] == [f"{nodes:,}", f"{peak:,}"]


def test_the_endings_of_a_run_that_can_be_repeated_are_an_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, bytes] = {}
    monkeypatch.setattr(Record, "artifact", lambda record, path: kept.update({path.name: path.read_bytes()}))
    train(tmp_path / "run", VIRTUAL)
    # As it is when the run has ended.
    assert kept["endings-1.jsonl"] == (tmp_path / "run" / "endings-1.jsonl").read_bytes()


def test_endings_that_nothing_is_repeated_from_are_not_recorded(tmp_path: Path) -> None:
    settings = ("parallelism=sandblaster", "optimizer=lbfgs", "schedule=constant", "train.batch_size=32")
    run(small_config(*settings), tmp_path / "run", overrides=[])
    assert not (tmp_path / "run" / "endings-1.jsonl").exists()
