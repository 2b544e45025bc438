"""Runs of ``async_data`` in one process: their files, their replay, and the origin of a nonfinite loss."""

import itertools
import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoint import background
from runner.commands.explain import explain
from runner.commands.explanation import training_plans
from runner.config.outcome import outcome_hash
from runner.engine.run.session import Session
from runner.engine.run.step_driver import StepDriver
from runner.errors import ConfigError, Interrupted, NonFiniteLossError, NumericError, RunnerError
from runner.records.endings import read_endings
from runner.records.record import Record
from runner.records.run_directory import RunDirectory
from runner.records.summary import Summary
from runner.tracking import read_metrics
from runner.training import experiment as updates
from runner.training import non_finite as origin
from runner.training.build import build
from runner.training.experiment import Experiment
from runner.training.non_finite import repeated_experiment
from tests import small_runs
from tests.small_runs import small_config

Trained = Callable[..., Path]

ASYNC = ("parallelism=async_data", "parallelism.workers=2", "parallelism.servers=2", "train.steps=4")
VIRTUAL = "parallelism.virtual_time=true"


def train(folder: Path, *overrides: str, resume: bool = False) -> Summary:
    return small_runs.train(folder, *ASYNC, *overrides, resume=resume)


def decided(folder: Path) -> Any:
    return json.loads((folder / "asynchronous.json").read_text())


def test_endings_and_decisions_are_written(tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    artifacts: dict[str, bytes] = {}
    monkeypatch.setattr(Record, "artifact", lambda record, path: artifacts.update({path.name: path.read_bytes()}))
    summary = train(tmp_path, VIRTUAL, "train.log_every=2", "tracking.pictures=true")
    record = decided(tmp_path)
    pushes = sum(record["replica_steps"])
    assert pushes >= 8
    assert [sum(shard.values()) for shard in record["staleness"]] == [pushes] * 2
    lines = (tmp_path / "endings-1.jsonl").read_text().splitlines()
    assert sum(line.startswith('["compute_') for line in lines) == pushes
    assert sum(line.startswith('["push_') for line in lines) == 2 * pushes
    assert artifacts["endings-1.jsonl"] == (tmp_path / "endings-1.jsonl").read_bytes(), "the artifact is incomplete"
    assert {path.name for path in (tmp_path / "plots").iterdir()} >= {"staleness.png", "staleness.csv"}
    logged = [each for each in read_metrics(tmp_path / "metrics.jsonl") if "train/loss" in each.values]
    assert all("comm/staleness_mean" in each.values for each in logged if each.step > 1)
    assert summary.status == "finished"
    assert {path.name for path in trained().iterdir()}.isdisjoint({"endings-1.jsonl", "asynchronous.json"})


def test_replaying_a_truncated_record_fails_at_its_end(tmp_path: Path, trained: Trained) -> None:
    lines = (trained(*ASYNC, VIRTUAL) / "endings-1.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(lines[:9]))
    with pytest.raises(RunnerError, match=r"^the record (ends after|is incomplete)"):
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
def test_a_killed_run_resumes_to_the_same_weights(tmp_path: Path, trained: Trained, settings: tuple[str, ...]) -> None:
    whole = trained(*ASYNC, *CHECKPOINTED, *settings)
    uninterrupted = Summary.read(whole / "summary.json")
    saved = sorted(int(path.name.removeprefix("step-")) for path in (whole / "checkpoints").iterdir())
    assert len(saved) > 1
    for step in saved[:-1] if not settings else saved[:1]:
        killed = shutil.copytree(whole, tmp_path / f"killed-{step}")
        for later in saved[saved.index(step) + 1 :]:
            shutil.rmtree(killed / "checkpoints" / f"step-{later}")
        (killed / "summary.json").unlink()
        resumed = train(killed, *CHECKPOINTED, *settings, resume=True)
        assert resumed.weights_sha256 == uninterrupted.weights_sha256
        assert resumed.final["test/loss"] == uninterrupted.final["test/loss"]


@pytest.mark.parametrize(
    "settings",
    [(VIRTUAL, "parallelism.n_fetch=3"), ("parallelism.workers=1", "parallelism.servers=1", "parallelism.loop=direct")],
)
def test_runs_whose_workers_do_not_race_are_not_saved_by_time(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    settings = (*settings, "train.steps=9", "train.eval_every=2")
    monkeypatch.setattr(background, "COST", 0)
    summary = train(tmp_path, *settings, "checkpoint.every_s=0")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-9"]
    assert summary.weights_sha256 == Summary.read(trained(*ASYNC, *settings) / "summary.json").weights_sha256


@pytest.mark.parametrize("settings", [("train.eval_every=2",), (*CHECKPOINTED[1:], "parallelism.n_push=2")])
def test_a_run_is_repeated_from_its_record(tmp_path: Path, trained: Trained, settings: tuple[str, ...]) -> None:
    first = trained(*ASYNC, VIRTUAL, *settings)
    second = train(tmp_path, f"parallelism.replay={first / 'endings-1.jsonl'}", *settings)
    assert second.weights_sha256 == Summary.read(first / "summary.json").weights_sha256
    assert (tmp_path / "endings-1.jsonl").read_text() == (first / "endings-1.jsonl").read_text()
    assert decided(tmp_path) == decided(first)


def stopped_after(step: int, folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> str:
    """Train until Ctrl-C arrives during update ``step``; return the message that ends the run."""
    train_step = updates.train_step

    def stopping(step_driver: StepDriver, experiment: Experiment, number: int) -> Any:
        if number + 1 == step:
            os.kill(os.getpid(), signal.SIGINT)
        return train_step(step_driver, experiment, number)

    with monkeypatch.context() as patch:
        patch.setattr(updates, "train_step", stopping)
        with pytest.raises(Interrupted) as stopped:
            train(folder, *overrides)
    return str(stopped.value)


@pytest.mark.parametrize(("step", "saved"), [(2, []), (3, ["step-3"]), (5, ["step-3"])])
def test_a_stopped_run_in_virtual_time_saves_only_at_steps_of_the_uninterrupted_run(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch, step: int, saved: list[str]
) -> None:
    uninterrupted = Summary.read(trained(*ASYNC, *CHECKPOINTED) / "summary.json")
    message = stopped_after(step, tmp_path / "run", monkeypatch, *CHECKPOINTED)
    assert message.startswith(f"stopped after step {step} of 9")
    without = "without a checkpoint, because a checkpoint changes the order of events in virtual time"
    assert (without in message) == (step != 3)
    assert message.endswith(f"; continue with: runner resume={tmp_path / 'run'}")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == saved
    resumed = train(tmp_path / "run", *CHECKPOINTED, resume=True)
    assert resumed.weights_sha256 == uninterrupted.weights_sha256


def test_a_stopped_repetition_is_not_resumed(tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = f"parallelism.replay={trained(*ASYNC, VIRTUAL) / 'endings-1.jsonl'}"
    message = stopped_after(2, tmp_path / "run", monkeypatch, replay)
    assert message == f"stopped after step 2 of 4; a run with {replay} cannot be resumed; start a new run"
    with pytest.raises(ConfigError, match="a recorded order is replayed from the first step on; start a new run"):
        train(tmp_path / "run", replay, resume=True)


def test_recording_a_timeline_in_virtual_time_does_not_change_the_weights(tmp_path: Path, trained: Trained) -> None:
    plain = Summary.read(trained(*ASYNC, VIRTUAL) / "summary.json")
    traced = train(tmp_path / "run", VIRTUAL, "trace=true", "trace_skip=1", "trace_steps=2")
    assert traced.weights_sha256 == plain.weights_sha256
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    rows = {event["args"]["name"].partition(" ")[0] for event in events if event["name"] == "thread_name"}
    assert {"steps", "compute_0", "compute_1", "push_0_0", "push_1_0"} <= rows
    summary = json.loads((tmp_path / "run" / "trace_summary.json").read_text())
    assert [each["step"] for each in summary["steps"]] == [1, 2]


NO_LINK = r"^cluster.emulate=true with parallelism=async_data in one process: there is no link to emulate"
WARM = r"^parallelism\.warmstart_steps=3 with [23] updates in all: the first replica .* alone; use fewer"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("cluster=slow_network", VIRTUAL), NO_LINK),
        (("cluster=slow_network", "parallelism.replay=x"), NO_LINK),
        (("parallelism.warmstart_steps=3", "train.steps=3"), WARM),
        # There are 1438 examples in batches of 32, so 0.04 epochs are 1.8 updates.
        (("parallelism.warmstart_steps=3", "train.steps=null", "train.epochs=0.04"), WARM),
    ],
)
def test_an_emulated_network_and_a_run_of_only_warm_start_are_refused(settings: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        build(small_config(*ASYNC, *settings))
    build(small_config(*ASYNC, "train.steps=4", "parallelism.warmstart_steps=3"))


def test_explain_describes_a_step_of_overlapping_clients() -> None:
    text = explain(small_config(*ASYNC))
    assert "The table counts the average number of runs of each client" in text
    assert "one evaluation" not in text
    experiment = build(small_config(*ASYNC))
    plans = training_plans(experiment, experiment.plans())
    assert len(plans) == 4
    for device, own in plans.items():
        each = [plan for plan, _ in own]
        row = next(line for line in text.splitlines() if line.startswith(device)).split()
        nodes, peak = sum(len(plan.instructions) for plan in each), max(plan.arena_bytes for plan in each)
        assert row[1:3] == [f"{nodes:,}", f"{peak:,}"]


@pytest.mark.slow
def test_endings_on_which_no_result_depends_are_not_recorded(tmp_path: Path) -> None:
    settings = ("parallelism=sandblaster", "optimizer=lbfgs", "schedule=constant", "train.batch_size=32")
    small_runs.train(tmp_path, *settings)
    assert not (tmp_path / "endings-1.jsonl").exists()


RUINED = (VIRTUAL, "optimizer.lr=1e25", "schedule=constant", "train.steps=20", "train.eval_every=1")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.open(tmp_path / "run", resume=False) as directory:
        yield directory


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the strategies with which steps are repeated to find the origin of a nonfinite loss."""
    opened: list[Any] = []
    open_session = origin.open_session

    @contextmanager
    def noted(experiment: Experiment, directory: RunDirectory, check_finite: bool) -> Iterator[Session]:
        opened.append(experiment.config.parallelism)
        with open_session(experiment, directory, check_finite) as session:
            yield session

    monkeypatch.setattr(origin, "open_session", noted)
    return opened


def test_overlapping_clients_are_repeated_in_the_order_in_which_they_ended(tmp_path: Path, repeated: list[Any]) -> None:
    with pytest.raises(NumericError, match=r"the loss of step \d+ is (nan|inf).*\. Origin: .*node '.*no earlier node"):
        train(tmp_path, *RUINED)
    (strategy,) = repeated
    assert strategy.replay == str(tmp_path / "endings-1.jsonl")
    assert not strategy.virtual_time


def test_clients_that_overlap_a_failure_are_in_the_record(tmp_path: Path) -> None:
    """On each device, the recorded turns (positions in the order in which steps began) are 0, 1, 2, ... without gaps,
    so all of them can be repeated in order.
    """
    settings = (*RUINED, "parallelism.workers=3", "train.eval_every=20")
    with pytest.raises(NumericError, match="Origin: "):
        train(tmp_path, *settings)
    turns: dict[str, list[int]] = {}
    for ending in read_endings(tmp_path / "endings-1.jsonl", outcome_hash(small_config(*ASYNC, *settings))):
        for device, turn in ending.turns.items():
            turns.setdefault(device, []).append(turn)
    assert len(turns) == 5
    assert all(sorted(own) == list(range(len(own))) for own in turns.values())


def test_after_a_checkpoint_the_order_is_unknown_and_a_possible_origin_is_reported(
    tmp_path: Path, repeated: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, *RUINED, "optimizer.lr=0.1", "train.steps=2")
    monkeypatch.setattr(origin, "repeated_experiment", lambda *arguments: None)
    expected = r"\. Possible origin, found with another order of the workers: .*node '"
    with caplog.at_level(logging.WARNING), pytest.raises(NumericError, match=expected):
        train(tmp_path, *RUINED, resume=True)
    (strategy,) = repeated
    assert strategy.replay is None
    expected = "the order of asynchronous workers cannot be replayed from step 2 on: the steps are repeated in "
    assert any(message.startswith(expected) for message in caplog.messages)


def test_virtual_time_is_repeated_after_a_checkpoint(
    tmp_path: Path, directory: RunDirectory, repeated: list[Any]
) -> None:
    directory.endings_jsonl.touch()
    assert repeated_experiment(build(small_config(*ASYNC)), directory, 5) is None
    train(tmp_path / "ruined", *RUINED, "optimizer.lr=0.1", "train.steps=2")
    with pytest.raises(NumericError, match=r"\. Origin: .*node '"):
        train(tmp_path / "ruined", *RUINED, resume=True)
    (strategy,) = repeated
    assert strategy.virtual_time


def test_a_run_whose_results_do_not_depend_on_overlap_is_repeated_unchanged(directory: RunDirectory) -> None:
    settings = ("parallelism=sandblaster", "optimizer=lbfgs", "schedule=constant", "train.batch_size=32")
    overlapping = build(small_config(*settings))
    assert any(client.deferred for client in overlapping.program.training)
    for experiment, step in itertools.product((build(small_config()), overlapping), (0, 5)):
        assert repeated_experiment(experiment, directory, step) is experiment


@pytest.mark.parametrize("apart", ["cluster=slow_network", "cluster.one_process=false", "cluster/launcher=slurm"])
def test_a_nondeterministic_run_is_repeated_from_its_record_in_one_process(directory: RunDirectory, apart: str) -> None:
    experiment = build(small_config(*ASYNC, apart))
    without_record = repeated_experiment(experiment, directory, 0)
    assert without_record is None, "no file records the order in which clients ended"
    directory.endings_jsonl.touch()
    again = repeated_experiment(experiment, directory, 0)
    assert again is not None
    assert again.program.one_process is not None
    assert again.emulation is None


def test_a_damaged_record_does_not_hide_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def damage(error: NonFiniteLossError, experiment: Experiment, directory: RunDirectory) -> None:
        directory.endings_jsonl.write_text("{}")
        origin.name_the_node(error, experiment, directory)

    monkeypatch.setattr("runner.training.run.name_the_node", damage)
    with pytest.raises(NumericError, match=r"^the loss of step \d+ is .*: lower optimizer.lr or optimizer.clip_norm$"):
        train(tmp_path, *RUINED)
    assert any(message.startswith("the node that failed was not found: ") for message in caplog.messages)
