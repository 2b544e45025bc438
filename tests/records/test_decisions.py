"""Records of decisions and of client endings: continued by a later process, read back, and refused if damaged."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runner.engine.run.interleaving import Ending, Launched, Recorded
from runner.engine.run.step_driver import Finished
from runner.errors import ConfigError, RunnerError, SecurityError
from runner.records.decisions import Decisions, dropped_by_worker, outcome_of, read_decisions
from runner.records.endings import Origin, RecordingClients, read_endings

LINES = [
    {"step": 0, "dropped": [{"worker": 2, "examples": 5}]},
    {"step": 1, "dropped": []},
    {"step": 2, "dropped": [{"worker": 10, "examples": 4}, {"worker": 2, "examples": 5}]},
]


def test_every_kind_of_decision_has_a_file_with_a_line_for_each(tmp_path: Path) -> None:
    decisions = Decisions(tmp_path, first_step=0, outcome="abc")
    assert decisions.write({}) == []
    assert decisions.write({"x": LINES[:1], "y": []}) == [tmp_path / "x.jsonl", tmp_path / "y.jsonl"]
    decisions.write({"x": LINES})
    assert read_decisions(tmp_path / "x.jsonl") == LINES
    assert read_decisions(tmp_path / "y.jsonl") == []


def test_a_later_process_drops_the_steps_that_it_repeats(tmp_path: Path) -> None:
    Decisions(tmp_path, first_step=0, outcome="abc").write({"x": LINES})
    later = Decisions(tmp_path, first_step=2, outcome="abc")
    for count in (1, 2):
        again: list[dict[str, Any]] = [{"step": 2 + i, "own": True} for i in range(count)]
        later.write({"x": again})
        assert read_decisions(tmp_path / "x.jsonl") == LINES[:2] + again


def test_a_new_run_keeps_no_earlier_decisions(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("damaged")
    Decisions(tmp_path, first_step=0, outcome="abc").write({"x": LINES})
    assert read_decisions(tmp_path / "x.jsonl") == LINES


def test_the_first_line_identifies_the_run_and_is_not_a_decision(tmp_path: Path) -> None:
    Decisions(tmp_path, 0, "abc").write({"x": LINES})
    assert outcome_of(tmp_path / "x.jsonl") == "abc"
    assert (tmp_path / "x.jsonl").read_text().splitlines()[0] == '{"version": 1, "outcome": "abc"}'
    # A run that continues with other limits has another outcome hash.
    Decisions(tmp_path, 2, "longer").write({"x": []})
    assert (outcome_of(tmp_path / "x.jsonl"), read_decisions(tmp_path / "x.jsonl")) == ("longer", LINES[:2])


@pytest.mark.parametrize("first", ['{"step": 0}', '{"version": 2, "outcome": "abc"}', '{"version": 1, "outcome": 3}'])
def test_a_file_without_a_first_line_belongs_to_no_known_run(first: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(first)
    assert outcome_of(path) is None


@pytest.mark.parametrize("content", ["{}", '{"step": "1"}', "[1]", '{"step": 1', '{"step": true}'])
def test_anything_but_objects_with_a_step_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"step": 0}\n' + content)
    with pytest.raises(ValueError, match=r"line 2.* expected|not JSON"):
        read_decisions(path)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SecurityError, match="symbolic link"):
        read_decisions(tmp_path / "x.jsonl")


def test_dropped_shares_are_counted_by_worker(tmp_path: Path) -> None:
    assert dropped_by_worker(tmp_path / "x.jsonl") == ({}, {})
    Decisions(tmp_path, first_step=0, outcome="abc").write({"x": LINES})
    shares, examples = dropped_by_worker(tmp_path / "x.jsonl")
    assert shares == {"worker-2": 2, "worker-10": 1}
    assert examples == {"worker-2": 10, "worker-10": 4}


DEVICES = ("/job:worker/task:0/device:cpu:0", "/job:ps/task:0/device:cpu:0")
ORIGIN = Origin("abc", 0, DEVICES)
ENDINGS = [
    Finished("fetch", 0, {}, {DEVICES[1]: 0, DEVICES[0]: 0}),
    Finished("compute", 0, {}, {DEVICES[0]: 1}),
    Finished("fetch", 1, {}, {DEVICES[0]: 2, DEVICES[1]: 1}),
]


class Endings:
    """Fake clients that end in the order of ``ENDINGS``. ``requested`` records all other calls."""

    def __init__(self) -> None:
        self.endings = list(ENDINGS)
        self.requested: list[Any] = []

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self.requested.append(("run", client, step, feeds))
        return {"answer": 42}

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        self.requested.append(("launch", client, step, feeds))

    def finished(self) -> Finished:
        return self.endings.pop(0)


def note(path: Path, origin: Origin = ORIGIN, count: int = 3, most: int = 10) -> None:
    with closing(RecordingClients(Endings(), path, origin, most=most)) as clients:
        for expected in ENDINGS[:count]:
            assert clients.finished() is expected


def first_line(**changed: Any) -> str:
    """Return the first line of a record, with some values changed."""
    return json.dumps({"version": 1, "outcome": "abc", "first_step": 0, "devices": ["a", "b"], **changed})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "endings-1.jsonl"


def test_written_endings_are_read_back(path: Path) -> None:
    note(path)
    assert read_endings(path, "abc") == [Ending(each.client, each.step, each.turns) for each in ENDINGS]


def test_other_calls_are_passed_on(path: Path) -> None:
    clients = Endings()
    with closing(RecordingClients(clients, path, ORIGIN)) as recording:
        assert recording.run("init", step=3, feeds={"x": 1}) == {"answer": 42}
        recording.launch("compute", step=4, feeds={"x": 2})
    assert clients.requested == [("run", "init", 3, {"x": 1}), ("launch", "compute", 4, {"x": 2})]


def test_a_record_begins_with_the_first_ending_and_is_limited(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    note(path, count=0)
    assert not path.exists()
    note(path, most=1)
    assert len(read_endings(path, "abc")) == 1
    assert caplog.messages == [f"{path} is full after 1 steps: later steps of this run cannot be replayed"]


@pytest.mark.parametrize(
    ("first_step", "outcome", "complaint"),
    [
        (0, "abd", "^{path} is the record of a run with another configuration: use the config"),
        (7, "abc", "begins at step 7 of a run that was resumed: only a record that"),
        (None, "abc", "^{path}: the record of a run cannot be read: .*No such file"),
    ],
)
def test_the_record_of_another_run_is_refused(path: Path, first_step: int | None, outcome: str, complaint: str) -> None:
    if first_step is not None:
        note(path, Origin("abc", first_step, DEVICES))
    with pytest.raises(ConfigError, match=complaint.format(path=path)):
        read_endings(path, outcome)


def test_a_last_line_that_was_cut_off_is_left_out_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    note(path)
    path.write_text(path.read_text()[:-4])
    assert len(read_endings(path, "abc")) == 2
    assert caplog.messages == [f"{path}: line 4 is ignored, because it was cut off when the run was killed"]


def test_no_link_to_endings_is_followed(path: Path, tmp_path: Path) -> None:
    note(path)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(SecurityError, match="symbolic link"):
        read_endings(tmp_path / "link", "abc")


@pytest.mark.parametrize(
    "first", ["", "[1]", first_line(version=2), first_line(first_step=False), first_line(devices=["a", "a"])]
)
def test_a_file_that_is_not_a_record_is_refused(path: Path, first: str) -> None:
    path.write_text(first and first + "\n")
    with pytest.raises(ConfigError, match=rf"^{path}: .*expected a record of version 1"):
        read_endings(path, "abc")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('["fetch", 0, {"2": 0}]', r"line 5: name in turns: '2', expected one of 0, 1; expected \[client, step, \{dev"),
        ('["fetch", 0, {"0": "1"}]', r"line 5: turns\[0\]: '1', expected a whole number"),
        ('["fetch", true, {"0": 9}]', "line 5: step: True, expected a whole number"),
        ('[3, 0, {"0": 9}]', "line 5: client: 3, expected text"),
        ('["fetch", 0, {}]', "line 5: turns: expected at least one device"),
        ('["fetch", 1, {"1": 0}]', rf"line 5: step number 0 of {DEVICES[1]} is also in line 2; the record is damaged"),
        ('["fetch", 0]', "line 5: ending: .*, expected a list of at least 3"),
        ('["fet', "line 5: not JSON"),
        ("[" * 60_000, "line 5: not JSON"),
    ],
)
def test_a_damaged_line_is_reported_with_its_number(path: Path, line: str, expected: str) -> None:
    note(path)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigError, match=rf"^{path}, {expected}"):
        read_endings(path, "abc")


def test_a_record_that_contradicts_itself_is_refused() -> None:
    """The record has two clients in opposite orders on two devices, so each client waits for the other."""
    there, back = DEVICES
    recorded = Recorded([Ending("go", 0, {there: 0, back: 1}), Ending("come", 0, {there: 1, back: 0})])
    recorded.launched(Launched("go", 0, {there: {back: 4}, back: {}}))
    recorded.launched(Launched("come", 0, {back: {there: 4}, there: {}}))
    expected = rf"^the record is contradictory: step 0 of 'go' on {there} waits for itself$"
    with pytest.raises(RunnerError, match=expected):
        recorded.next()
