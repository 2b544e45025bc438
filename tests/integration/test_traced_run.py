"""The timeline of runs on worker processes, as a file for trace viewers and as an artifact in MLflow."""

import json
import re
import signal
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command import QUIET, Start, succeed, wait_until
from tests.small_runs import typed

Event = dict[str, Any]

ON_DEVICES = ("input", "compute", "send", "wait", "receive", "delay")
_ROUNDED_US = 0.002
"""Microseconds are written with three decimals, so start plus duration can be off by a rounded nanosecond."""


def read_events(run: Path) -> list[Event]:
    """Return the events of the trace in a run directory."""
    found: list[Event] = json.loads((run / "trace.json").read_text())["traceEvents"]
    return found


def complete(events: list[Event], *categories: str) -> list[Event]:
    """Return the events of the given categories, by default of all categories, that have a duration."""
    return [event for event in events if event["ph"] == "X" and (not categories or event["cat"] in categories)]


def processes(events: list[Event]) -> dict[int, str]:
    """Return a dict that maps the number of each process to its name."""
    return {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}


def rows(events: list[Event]) -> dict[int, str]:
    """Return a dict that maps the number of each row to its name."""
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def transfer(event: Event) -> tuple[str, int, str]:
    """Return the fields that are equal in the events of the two ends of a transfer."""
    arguments = event["args"]
    return arguments["client"], arguments["number"], arguments["key"]


def expect_the_format(events: list[Event]) -> None:
    """Require that every event has the fields that viewers need, and that every flow has a beginning and an end."""
    assert {event["ph"] for event in events} == {"M", "X", "s", "f"}
    for event in complete(events):
        assert set(event) == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
        assert event["ts"] >= 0
        assert event["dur"] >= 0
    begins, ends = ({event["id"]: event for event in events if event["ph"] == phase} for phase in "sf")
    assert begins.keys() == ends.keys()
    for number, begin in begins.items():
        assert begin["pid"] != ends[number]["pid"]
        assert begin["ts"] <= ends[number]["ts"]


def expect_one_thing_at_a_time(events: list[Event]) -> None:
    """Require that, on the common clock, a device does only one thing at a time, even if several clients run."""
    own_kinds = [each for each in complete(events, *ON_DEVICES) if not each["name"].startswith("wait for ")]
    for pid in {event["pid"] for event in own_kinds}:
        own = sorted((event for event in own_kinds if event["pid"] == pid), key=lambda event: event["ts"])
        assert all(after["ts"] - before["ts"] - before["dur"] > -_ROUNDED_US for before, after in pairwise(own))


def expect_runs_around_their_parts(events: list[Event]) -> None:
    """Require that the work of a client run on devices lies between its launch and its answer in the session."""
    runs = {(e["args"]["client"], e["args"]["number"]): e for e in complete(events, "run")}
    for event in complete(events, *ON_DEVICES):
        run = runs.get((event["args"]["client"], event["args"]["number"]))
        if run is not None and not event["name"].startswith("wait for "):
            assert run["ts"] - _ROUNDED_US < event["ts"]
            assert event["ts"] + event["dur"] < run["ts"] + run["dur"] + _ROUNDED_US


def expect_the_critical_path(events: list[Event], steps: list[dict[str, Any]]) -> None:
    """Require that a row of the session has the critical path of each step, without gaps, as the summary has it.

    steps: the list of steps in trace_summary.json.
    """
    path, of_process, of_row = complete(events, "critical path"), processes(events), rows(events)
    assert {(of_process[each["pid"]], of_row[each["tid"]]) for each in path} == {("master-0", "critical path")}
    updates = complete(events, "step")
    assert len(updates) == len(steps)
    for update, step in zip(updates, steps, strict=True):
        own = [each for each in path if each["args"]["step"] == step["step"]]
        ends = [update["ts"], *(each["ts"] + each["dur"] for each in own)]
        assert [each["ts"] for each in own] == pytest.approx(ends[:-1], abs=_ROUNDED_US)
        assert ends[-1] == pytest.approx(update["ts"] + update["dur"], abs=_ROUNDED_US)
        ns: Counter[str] = Counter()
        for each in own:
            ns[each["args"]["kind"]] += round(each["dur"] * 1000)
        assert ns == step["critical_path_ns"]["by_kind"]


def expect_matching_transfers(events: list[Event]) -> None:
    """Require that a receive with a recorded send has as many bytes as the send and ended after the send began."""
    sends = {transfer(event): event for event in complete(events, "send")}
    ends = [event for event in complete(events, "receive") if transfer(event) in sends]
    for event in ends:
        send = sends[transfer(event)]
        assert send["pid"] != event["pid"]
        assert send["ts"] <= event["ts"] + event["dur"]
        assert send["args"]["bytes"] == event["args"]["bytes"]
    assert len(ends) == sum(event["ph"] == "s" for event in events) > 0


def test_the_timeline_is_lost_if_a_worker_is_killed(start: Start, tmp_path: Path) -> None:
    # The steps are slow, so that the recorded steps are not finished when the first checkpoint appears.
    slow = ("cluster.emulate=true", "cluster.latency_ms=200", "train.steps=200", "trace_skip=0", "trace_steps=100")
    quiet = ("tracking=none", "tracking.pictures=false", "checkpoint.every_steps=1", "train.restarts=0")
    traced = typed("hydra.run.dir=run model=mlp model.hidden=[16] trace=true cluster.threads_per_worker=1")
    command = start(tmp_path, *traced, *slow, *quiet)
    wait_until((tmp_path / "run" / "checkpoints" / "step-1").exists, "a first checkpoint")
    command.workers()[1].send_signal(signal.SIGKILL)
    assert command.finish() == 7, command.errors
    log = (tmp_path / "run" / "run.log").read_text()
    assert "no timeline could be collected from the workers: " in log
    assert "Traceback" not in log
    assert not (tmp_path / "run" / "trace.json").exists()


STEPS = [3, 4, 5, 6, 7, 8]
"""The recorded steps. An evaluation between them waits for all workers, so the slow worker computes during them."""

SMALL = (
    *QUIET[1:],
    *typed(
        "model=mlp model.hidden=[8] data=digits schedule=constant train.batch_size=24 train.epochs=null "
        "train.steps=9 train.eval_every=4 hydra.run.dir=run trace=true trace_skip=3 trace_steps=6"
    ),
)
SLOW = (
    *("cluster.emulate=true", "cluster.stragglers.distribution=constant", "cluster.stragglers.median_ms=30"),
    "cluster.stragglers.workers=[0]",
)
ASYNC = ("parallelism=async_data", "parallelism.workers=2", "parallelism.servers=2")
TRACED_LAUNCHES = {
    "synchronous": ("parallelism=sync_data", "parallelism.workers=2"),
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
    "synchronous": {"train"},
    "overlapped": {"compute", "fetch", "push"},
    "direct": {"compute", "push"},
    "sandblaster": {"compute", "fetch", "gather"},
    "backups": {"read", "share", "apply"},
}
"""Kinds of clients that run in the recorded steps at any speed of the workers."""
SERVERS = {"synchronous": 0, "overlapped": 2, "direct": 2, "sandblaster": 1, "backups": 1}
WORKERS = {**dict.fromkeys(TRACED_LAUNCHES, 2), "backups": 3}


@pytest.fixture(
    scope="module",
    params=[
        "synchronous",
        "overlapped",
        "backups",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("direct", "sandblaster")),
    ],
)
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the key of a run in ``TRACED_LAUNCHES``, and the directory of the run."""
    folder = tmp_path_factory.mktemp(request.param)
    stored = ("tracking=mlflow", "tracking.finish_timeout_s=60")
    tracking = stored if request.param == "synchronous" else ("tracking=none",)
    succeed(folder, *SMALL, *TRACED_LAUNCHES[request.param], *tracking)
    return request.param, folder / "run"


def test_mlflow_keeps_both_files(traced: tuple[str, Path]) -> None:
    name, run = traced
    for file in ("trace.json", "trace_summary.json"):
        kept = [path.read_bytes() for path in run.parent.rglob(file) if path.parent.name == "artifacts"]
        assert kept == ([(run / file).read_bytes()] if name == "synchronous" else [])


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
    expect_the_critical_path(events, summary(run)["steps"])
    workers = [f"worker-{k}" for k in range(WORKERS[name])]
    servers = [f"ps-{j}" for j in range(SERVERS[name])]
    assert sorted(processes(events).values()) == sorted(["master-0", *workers, *servers])
    assert [event["args"]["step"] for event in complete(events, "step")] == STEPS
    if name == "synchronous":
        names = processes(events)
        seen = {(names[event["pid"]], event["args"]["step"], event["cat"]) for event in complete(events)}
        kinds = {"master": ("step", "run", "critical path"), "worker": ("part", *ON_DEVICES[:-1])}
        assert seen >= {(each, step, kind) for each in names.values() for step in STEPS for kind in kinds[each[:6]]}


def within_the_window(events: list[Event]) -> set[tuple[str, int]]:
    """Return the runs that were launched and ended between the start of the first step and the end of the last."""
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
    # The client "recall" only fetches variables and computes nothing.
    assert {of for of in whole if of[0] != "recall"} <= runs_of(complete(events, "compute"))
    for each in ("run", "part"):
        numbered = [(event["tid"], *runs_of([event])) for event in complete(events, each)]
        assert len(set(numbered)) == len(numbered)


def test_sends_match_their_receives_run_by_run(traced: tuple[str, Path]) -> None:
    _, run = traced
    events = read_events(run)
    expect_matching_transfers(events)
    # Transfers in progress when the recording began or ended may have only one recorded end.
    whole = within_the_window(events)
    sends, received = ([e for e in complete(events, kind) if runs_of([e]) <= whole] for kind in ("send", "receive"))
    assert sorted(map(transfer, sends)) == sorted(map(transfer, received))
    assert len(set(map(transfer, sends))) == len(sends) > 0


def test_the_times_in_the_summary_add_up_and_processes_are_listed(traced: tuple[str, Path]) -> None:
    name, run = traced
    steps = summary(run)["steps"]
    assert [each["step"] for each in steps] == STEPS
    known = {"master-0", *processes(read_events(run)).values()}
    for step in steps:
        assert {sum(part.values()) for part in step["critical_path_ns"].values()} == {step["ns"]}
        assert {sum(part.values()) for part in step["processes_ns"].values()} == {step["ns"]}
        assert len(step["processes_ns"]) == WORKERS[name] + SERVERS[name]
        assert {each["for"] for each in step["waited"]} <= known
        if name == "synchronous":
            waited = {(each["who"], each["for"]) for each in step["waited"]}
            assert waited == {("worker-0", "worker-1"), ("worker-1", "worker-0")}
    text = (run / "run.log").read_text()
    assert f"critical path of {len(STEPS)} step(s), ms per step, share" in text
    # If clients are launched ahead of their step, all computations of a worker may be outside the recorded steps.
    computed = any("compute" in step["processes_ns"]["worker-1"] for step in steps)
    row = re.search(r"^  worker-1 +(.*)idle \d+\.\d%$", text, re.MULTILINE)
    assert row is not None
    assert bool(re.search(r"compute \d+\.\d%, ", row[1])) == computed
    assert len(re.findall(r"^step \d: [\d.]+ ms; waited: ", text, re.MULTILINE)) == len(STEPS)


def test_the_delays_of_a_slow_worker_are_recorded(traced: tuple[str, Path]) -> None:
    name, run = traced
    events = read_events(run)
    slow = {processes(events)[event["pid"]] for event in complete(events, "delay")}
    assert slow == ({"worker-0"} if name in ("sandblaster", "backups") else set())
