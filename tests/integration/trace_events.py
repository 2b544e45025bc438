"""The events of a trace file, and the rules that hold for every run."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

Event = dict[str, Any]

ON_DEVICES = ("input", "compute", "send", "wait", "receive", "delay")
_ROUNDED_US = 0.002
"""Microseconds have three digits: a nanosecond may be rounded away."""


def read_events(run: Path) -> list[Event]:
    """The events of the trace in a run directory."""
    found: list[Event] = json.loads((run / "trace.json").read_text())["traceEvents"]
    return found


def complete(events: list[Event], *categories: str) -> list[Event]:
    """Events that have a length, of some categories or of all."""
    return [event for event in events if event["ph"] == "X" and (not categories or event["cat"] in categories)]


def processes(events: list[Event]) -> dict[int, str]:
    """Number -> name."""
    return {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}


def rows(events: list[Event]) -> dict[int, str]:
    """Number of a row -> what is written there."""
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def transfer(event: Event) -> tuple[str, int, str]:
    """What the two ends of a transfer have in common."""
    arguments = event["args"]
    return arguments["client"], arguments["number"], arguments["key"]


def expect_the_format(events: list[Event]) -> None:
    """Every event has what viewers need, and every flow a beginning and an end."""
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
    """A device does one thing at a time, whichever run it is of, and on the clock of all others."""
    own_kinds = [each for each in complete(events, *ON_DEVICES) if not each["name"].startswith("wait for ")]
    for pid in {event["pid"] for event in own_kinds}:
        own = sorted((event for event in own_kinds if event["pid"] == pid), key=lambda event: event["ts"])
        assert all(after["ts"] - before["ts"] - before["dur"] > -_ROUNDED_US for before, after in pairwise(own))


def expect_runs_around_their_parts(events: list[Event]) -> None:
    """What a device does lies between the launch of its run and the answer, as the session saw them."""
    runs = {(e["args"]["client"], e["args"]["number"]): e for e in complete(events, "run")}
    for event in complete(events, *ON_DEVICES):
        run = runs.get((event["args"]["client"], event["args"]["number"]))
        if run is not None and not event["name"].startswith("wait for "):
            assert run["ts"] - _ROUNDED_US < event["ts"]
            assert event["ts"] + event["dur"] < run["ts"] + run["dur"] + _ROUNDED_US


def expect_matching_transfers(events: list[Event]) -> None:
    """Every receive has a send that began before it ended, and says the same of it."""
    sends = {transfer(event): event for event in complete(events, "send")}
    ends = [event for event in complete(events, "receive") if transfer(event) in sends]
    for event in ends:
        send = sends[transfer(event)]
        assert send["pid"] != event["pid"]
        assert send["ts"] <= event["ts"] + event["dur"]
        assert send["args"]["bytes"] == event["args"]["bytes"]
    assert len(ends) == sum(event["ph"] == "s" for event in events) > 0
