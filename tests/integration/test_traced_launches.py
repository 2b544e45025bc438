"""The timeline of runs on worker processes whose clients are launched and overlap."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command import QUIET, succeed
from tests.integration.trace_events import (
    Event,
    complete,
    expect_matching_transfers,
    expect_one_thing_at_a_time,
    expect_runs_around_their_parts,
    expect_the_format,
    processes,
    read_events,
    rows,
    transfer,
)

STEPS = [3, 4, 5, 6, 7, 8]
"""An evaluation between them waits for all workers, so that the slow one has work within them."""

SMALL = (
    *QUIET,
    *(
        "model=mlp",
        "model.hidden=[8]",
        "data=digits",
        "schedule=constant",
        "train.batch_size=24",
    ),
    *("train.epochs=null", "train.steps=9", "train.eval_every=4"),
    *("hydra.run.dir=run", "trace=true", "trace_skip=3", "trace_steps=6"),
)
SLOW = (
    *("cluster.emulate=true", "cluster.stragglers.distribution=constant", "cluster.stragglers.median_ms=30"),
    "cluster.stragglers.workers=[0]",
)
ASYNC = ("parallelism=async_data", "parallelism.workers=2", "parallelism.servers=2")
TRACED = {
    "overlapped": (*ASYNC, "parallelism.n_fetch=2"),
    "direct": (*ASYNC, "parallelism.loop=direct"),
    "sandblaster": (
        *("parallelism=sandblaster", "parallelism.workers=2", "parallelism.portions_per_worker=3"),
        *("optimizer=lbfgs", "optimizer.history=2", *SLOW),
    ),
    "backups": (
        *("parallelism=sync_data", "parallelism.workers=2", "parallelism.combine=parameter_server"),
        *("parallelism.backup_workers=1", *SLOW),
    ),
}
KINDS = {
    "overlapped": {"compute", "fetch", "push"},
    "direct": {"compute", "push"},
    "sandblaster": {"compute", "fetch", "gather"},
    "backups": {"read", "share", "apply"},
}
"""Actions of clients in these updates, at any speed of workers."""
SERVERS = {"overlapped": 2, "direct": 2, "sandblaster": 1, "backups": 1}
WORKERS = {"overlapped": 2, "direct": 2, "sandblaster": 2, "backups": 3}


@pytest.fixture(scope="module", params=list(TRACED))
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Which run, and its directory."""
    folder = tmp_path_factory.mktemp(request.param)
    succeed(folder, *SMALL, *TRACED[request.param])
    return request.param, folder / "run"


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "trace_summary.json").read_text())
    return found


def runs_of(events: Iterable[Event]) -> set[tuple[str, int]]:
    return {(event["args"]["client"], event["args"]["number"]) for event in events}


def test_the_file_is_a_timeline_of_all_processes_on_one_clock(traced: tuple[str, Path]) -> None:
    name, run = traced
    events = read_events(run)
    expect_the_format(events)
    expect_one_thing_at_a_time(events)
    expect_runs_around_their_parts(events)
    workers = [f"worker-{k}" for k in range(WORKERS[name])]
    servers = [f"ps-{j}" for j in range(SERVERS[name])]
    assert sorted(processes(events).values()) == sorted(["master-0", *workers, *servers])
    assert [event["args"]["step"] for event in complete(events, "step")] == STEPS


def within_the_window(events: list[Event]) -> set[tuple[str, int]]:
    """The runs that were launched and ended between the beginning of the first step and the end of the last."""
    first, *_, last = complete(events, "step")
    begin, end = first["ts"], last["ts"] + last["dur"]
    return runs_of(e for e in complete(events, "run") if begin <= e["ts"] and e["ts"] + e["dur"] <= end)


def test_every_client_has_a_row_on_every_device_that_takes_part(traced: tuple[str, Path]) -> None:
    name, run = traced
    events = read_events(run)
    clients = {client for client, _ in within_the_window(events)}
    assert {client.partition("_")[0] for client in clients} >= KINDS[name]
    written = set(rows(events).values())
    assert written >= clients
    assert {row.partition(" /job:")[0] for row in written if "/job:" in row} >= clients


def test_every_launch_within_the_window_is_recorded_with_its_computation(traced: tuple[str, Path]) -> None:
    _, run = traced
    events = read_events(run)
    whole = within_the_window(events)
    assert len(whole) >= len(STEPS)
    assert whole <= runs_of(complete(events, "part"))
    # Fetching a variable is no computation.
    assert {of for of in whole if of[0] != "recall"} <= runs_of(complete(events, "compute"))
    for each in ("run", "part"):
        numbered = [(event["tid"], *runs_of([event])) for event in complete(events, each)]
        assert len(set(numbered)) == len(numbered)


def test_sends_meet_their_receives_run_by_run(traced: tuple[str, Path]) -> None:
    _, run = traced
    events = read_events(run)
    expect_matching_transfers(events)
    # Of what was under way as the recording began or ended one end alone may be there.
    whole = within_the_window(events)
    sends, received = ([e for e in complete(events, kind) if runs_of([e]) <= whole] for kind in ("send", "receive"))
    assert sorted(map(transfer, sends)) == sorted(map(transfer, received))
    assert len(set(map(transfer, sends))) == len(sends) > 0


def test_the_summary_adds_up_and_lists_the_work_of_processes(traced: tuple[str, Path]) -> None:
    name, run = traced
    steps = summary(run)["steps"]
    assert [each["step"] for each in steps] == STEPS
    known = {"master-0", *processes(read_events(run)).values()}
    for step in steps:
        assert {sum(part.values()) for part in step["critical_path_ns"].values()} == {step["ns"]}
        assert {sum(part.values()) for part in step["processes_ns"].values()} == {step["ns"]}
        assert len(step["processes_ns"]) == WORKERS[name] + SERVERS[name]
        assert {each["for"] for each in step["waited"]} <= known
    text = (run / "run.log").read_text()
    assert f"critical path of {len(STEPS)} step(s), ms per step, share" in text
    # Where runs are launched ahead, all computations of a worker may lie outside the recorded steps.
    computed = any("compute" in step["processes_ns"]["worker-1"] for step in steps)
    row = re.search(r"^  worker-1 +(.*)idle \d+\.\d%$", text, re.MULTILINE)
    assert row is not None
    assert bool(re.search(r"compute \d+\.\d%, ", row[1])) == computed
    assert len(re.findall(r"^step \d: [\d.]+ ms; waited: ", text, re.MULTILINE)) == len(STEPS)


def test_the_delays_of_a_slow_worker_are_on_it(traced: tuple[str, Path]) -> None:
    name, run = traced
    events = read_events(run)
    slow = {processes(events)[event["pid"]] for event in complete(events, "delay")}
    assert slow == ({"worker-0"} if name in ("sandblaster", "backups") else set())
