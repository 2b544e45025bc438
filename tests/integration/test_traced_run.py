"""The timeline of a run on worker processes, as a file for viewers and an artifact of MLflow."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.command import Command, succeed, wait_until
from tests.integration.trace_events import (
    Event,
    complete,
    expect_matching_transfers,
    expect_one_thing_at_a_time,
    expect_runs_around_their_parts,
    expect_the_format,
    processes,
    read_events,
    transfer,
)

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
    succeed(folder, *TRACED)
    return folder


@pytest.fixture(scope="module")
def events(folder: Path) -> list[Event]:
    return read_events(folder / "run")


def test_every_event_has_the_fields_of_the_format(events: list[Event]) -> None:
    expect_the_format(events)


def test_all_processes_are_on_it_in_every_step(events: list[Event]) -> None:
    names = processes(events)
    assert sorted(names.values()) == ["master-0", "worker-0", "worker-1"]
    seen = {(names[event["pid"]], event["args"]["step"], event["cat"]) for event in complete(events)}
    kinds = ("part", "input", "compute", "send", "wait", "receive")
    assert seen == {("master-0", step, kind) for step in (2, 3, 4) for kind in ("step", "run")} | {
        (worker, step, kind) for worker in ("worker-0", "worker-1") for step in (2, 3, 4) for kind in kinds
    }


def test_every_receive_has_a_send_that_began_before_it_ended(events: list[Event]) -> None:
    expect_matching_transfers(events)
    assert sorted(map(transfer, complete(events, "send"))) == sorted(map(transfer, complete(events, "receive")))


def test_a_worker_does_one_thing_at_a_time_within_the_masters_steps(events: list[Event]) -> None:
    expect_one_thing_at_a_time(events)
    expect_runs_around_their_parts(events)
    runs = {(e["args"]["client"], e["args"]["number"]) for e in complete(events, "run")}
    assert {(e["args"]["client"], e["args"]["number"]) for e in complete(events, "part")} == runs


def test_the_summary_adds_up(folder: Path) -> None:
    summary = json.loads((folder / "run" / "trace_summary.json").read_text())
    assert [each["step"] for each in summary["steps"]] == [2, 3, 4]
    for step in summary["steps"]:
        assert {sum(part.values()) for part in step["critical_path_ns"].values()} == {step["ns"]}
        assert {sum(part.values()) for part in step["processes_ns"].values()} == {step["ns"]}
        assert {(each["who"], each["for"]) for each in step["waited"]} == {
            ("worker-0", "worker-1"),
            ("worker-1", "worker-0"),
        }


def test_mlflow_keeps_both_files(folder: Path) -> None:
    for name in ("trace.json", "trace_summary.json"):
        own = (folder / "run" / name).read_bytes()
        assert [path.read_bytes() for path in folder.rglob(name) if path.parent.name == "artifacts"] == [own]


def test_a_worker_that_is_killed_takes_the_timeline_along(start: Callable[..., Command], tmp_path: Path) -> None:
    # Far apart, so that the recorded updates are not over before the first checkpoint is seen.
    slow = ("cluster.emulate=true", "cluster.latency_ms=200", "train.steps=200", "trace_skip=0", "trace_steps=100")
    command = start(tmp_path, *TRACED, *slow, "tracking=none", "tracking.pictures=false", "checkpoint.every_steps=1")
    wait_until((tmp_path / "run" / "checkpoints" / "step-1").exists, "a first checkpoint")
    command.workers()[1].send_signal(signal.SIGKILL)
    assert command.finish() == 7, command.errors
    log = (tmp_path / "run" / "run.log").read_text()
    assert "no timeline could be collected from the workers: " in log
    assert "Traceback" not in log
    assert not (tmp_path / "run" / "trace.json").exists()
