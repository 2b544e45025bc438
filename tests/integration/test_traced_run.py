"""A recorded run on worker processes: one timeline of all, in a file that viewers open and MLflow keeps."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command import run_command

Event = dict[str, Any]

TRACED = (
    "hydra.run.dir=run",
    "model=mlp",
    "model.hidden=[16]",
    "train.steps=6",
    "trace=true",
    "trace_skip=2",
    "trace_steps=3",
    "cluster.threads_per_worker=1",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a traced run of two workers."""
    folder = tmp_path_factory.mktemp("traced")
    command = run_command(folder, *TRACED)
    assert "weights_sha256" in command.output, command.errors
    return folder


@pytest.fixture(scope="module")
def events(folder: Path) -> list[Event]:
    document = json.loads((folder / "run" / "trace.json").read_text())
    found: list[Event] = document["traceEvents"]
    return found


def complete(events: list[Event], category: str | None = None) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and category in (None, event["cat"])]


def test_every_event_has_what_the_format_asks_for(events: list[Event]) -> None:
    assert {event["ph"] for event in events} == {"M", "X"}
    for event in complete(events):
        assert set(event) == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
        assert event["ts"] >= 0
        assert event["dur"] >= 0


def test_all_processes_are_on_it_in_every_step(events: list[Event]) -> None:
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == ["master-0", "worker-0", "worker-1"]
    seen = {(names[event["pid"]], event["args"]["step"], event["cat"]) for event in complete(events)}
    kinds = ("input", "compute", "send", "wait", "receive")
    assert seen == {("master-0", step, "step") for step in (2, 3, 4)} | {
        (worker, step, kind) for worker in ("worker-0", "worker-1") for step in (2, 3, 4) for kind in kinds
    }


def test_every_receive_has_a_send_that_began_before_it_ended(events: list[Event]) -> None:
    sends = {(e["args"]["step"], e["args"]["key"]): e for e in complete(events, "send")}
    received = complete(events, "receive")
    assert sorted((e["args"]["step"], e["args"]["key"]) for e in received) == sorted(sends)
    for event in received:
        send = sends[event["args"]["step"], event["args"]["key"]]
        assert send["pid"] != event["pid"]
        assert send["ts"] <= event["ts"] + event["dur"]
        assert send["args"]["bytes"] == event["args"]["bytes"] > 0


def test_a_worker_does_one_thing_at_a_time_within_the_masters_steps(events: list[Event]) -> None:
    steps = {event["args"]["step"]: event for event in complete(events, "step")}
    for pid in {event["pid"] for event in complete(events, "compute")}:
        own = [event for event in complete(events) if event["pid"] == pid]
        # Microseconds with three digits: a nanosecond may be rounded away.
        assert all(after["ts"] - before["ts"] - before["dur"] > -0.002 for before, after in pairwise(own))
    for event in complete(events):
        assert event["ts"] >= steps[event["args"]["step"]]["ts"]


def test_the_summary_adds_up(folder: Path) -> None:
    summary = json.loads((folder / "run" / "trace_summary.json").read_text())
    assert [each["step"] for each in summary["steps"]] == [2, 3, 4]
    for step in summary["steps"]:
        assert {sum(part.values()) for part in step["critical_path_ns"].values()} == {step["ns"]}
        assert {(each["who"], each["for"]) for each in step["waited"]} == {
            ("worker-0", "worker-1"),
            ("worker-1", "worker-0"),
        }


def test_mlflow_keeps_both_files(folder: Path) -> None:
    for name in ("trace.json", "trace_summary.json"):
        own = (folder / "run" / name).read_bytes()
        assert [path.read_bytes() for path in folder.rglob(name) if path.parent.name == "artifacts"] == [own]
