"""A run of ``async_data`` in one process: what it leaves, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.commands.explanation import explain, training_plans
from runner.errors import ConfigError, RunnerError
from runner.records.record import Record
from runner.records.summary import Summary
from runner.tracking import read_metrics
from runner.training.build import build
from runner.training.life import run
from tests.small_runs import small_config

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


def test_a_record_that_was_cut_off_repeats_no_further(tmp_path: Path) -> None:
    train(tmp_path / "first", VIRTUAL)
    lines = (tmp_path / "first" / "endings-1.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(lines[:9]))
    with pytest.raises(RunnerError, match=r"^the record (ends after|lacks)"):
        train(tmp_path / "second", f"parallelism.replay={tmp_path / 'cut.jsonl'}")


def test_a_run_goes_on_from_a_checkpoint_with_endings_of_its_own(tmp_path: Path) -> None:
    train(tmp_path / "run", VIRTUAL)
    summary = train(tmp_path / "run", VIRTUAL, "train.steps=6", resume=True)
    assert (summary.status, summary.steps) == ("finished", 6)
    assert json.loads((tmp_path / "run" / "endings-2.jsonl").read_text().splitlines()[0])["first_step"] == 4


def test_a_run_of_one_client_leaves_no_such_files(tmp_path: Path) -> None:
    run(small_config(), tmp_path / "run", overrides=[])
    assert {path.name for path in (tmp_path / "run").iterdir()}.isdisjoint({"endings-1.jsonl", "asynchronous.json"})


def test_a_timeline_in_virtual_time_changes_no_bit(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", VIRTUAL)
    traced = train(tmp_path / "run", VIRTUAL, "trace=true", "trace_skip=1", "trace_steps=2")
    assert traced.weights_sha256 == plain.weights_sha256
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    rows = {event["args"]["name"].partition(" ")[0] for event in events if event["name"] == "thread_name"}
    assert {"steps", "compute_0", "compute_1", "push_0_0", "push_1_0"} <= rows
    summary = json.loads((tmp_path / "run" / "trace_summary.json").read_text())
    assert [each["step"] for each in summary["steps"]] == [1, 2]


@pytest.mark.parametrize("order", [VIRTUAL, "parallelism.replay=x"])
def test_an_emulated_network_in_one_process_is_refused(order: str) -> None:
    expected = r"^cluster.emulate=true with parallelism=async_data in one process: it has no wire to wait for"
    with pytest.raises(ConfigError, match=expected):
        build(small_config(*ASYNC, order, "cluster=slow_network"))


@pytest.mark.parametrize("length", [("train.steps=3",), ("train.steps=null", "train.epochs=0.04")])
def test_a_run_that_is_all_warm_start_is_refused(length: tuple[str, ...]) -> None:
    """1438 examples in batches of 32, so 0.04 epochs are 1.8 updates."""
    expected = r"^parallelism\.warmstart_steps=3 with [23] updates in all: the first replica .* alone; use fewer"
    with pytest.raises(ConfigError, match=expected):
        build(small_config(*ASYNC, *length, "parallelism.warmstart_steps=3"))
    build(small_config(*ASYNC, "train.steps=4", "parallelism.warmstart_steps=3"))


def test_explain_says_what_it_takes_for_a_step() -> None:
    text = explain(small_config(*ASYNC))
    assert "each is counted as often as it is run on average, when nobody is late" in text
    assert "one evaluation" not in text
    plans = training_plans(build(small_config(*ASYNC)))
    assert len(plans) == 4
    for device, each in plans.items():
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
