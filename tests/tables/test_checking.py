"""``runner table check``: the state of each run of a table, on one small table."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.cli import main
from runner.tables import checking
from runner.tables.results import folder_of
from tests.tables.own_table import TABLE, changed, command, run


def states(path: Path, capsys: pytest.CaptureFixture[str], code: int) -> dict[str, str]:
    """Check the table; return run -> state and reason."""
    capsys.readouterr()
    assert main(command(path, "check")) == code
    rows = [re.split(r"\s{2,}", line)[1:] for line in capsys.readouterr().out.splitlines()[1:]]
    return {row[0]: " ".join(row[1:]) for row in rows}


def edited(path: Path, machine: Mapping[str, str] | None = None, **changes: str) -> None:
    """Change the origin of each result of the run ``whole``. machine: facts that replace those of the machine."""
    for file in folder_of(path).glob("whole/*.json"):
        document = json.loads(file.read_text())
        document["origin"]["machine"].update(machine or {})
        document["origin"].update(changes)
        file.write_text(json.dumps(document))


MAJOR, MINOR, PATCH, *_ = sys.version_info
ANOTHER = "unchecked the results are from another kind of machine: "


@pytest.mark.parametrize(
    ("changes", "code", "state"),
    [
        ({}, 0, "current"),
        ({"machine": {"python": f"{MAJOR}.{MINOR}.{PATCH + 1}"}}, 0, "current"),
        ({"machine": {"python": f"{MAJOR}.{MINOR + 1}.{PATCH}"}}, 0, f"{ANOTHER}python differ"),
        ({"machine": {"cpu": "Z80"}}, 0, f"{ANOTHER}cpu differ"),
        ({"first_steps": "0" * 64}, 1, "stale the weights after the first updates changed"),
        ({"first_steps": ""}, 0, "unchecked the weights after the first updates are not stored"),
        ({"data": "0" * 16}, 1, "stale the data changed: their digest is "),
    ],
)
def test_results_are_current_until_program_or_data_change(
    changes: dict[str, Any], code: int, state: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(finished, **changes)
    found = states(finished, capsys, code)
    assert found["whole"].startswith(state)
    assert found["parts"] == "current"


def test_results_of_another_configuration_are_stale(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(finished, runs__whole__overrides=["optimizer.lr=0.5"])
    assert states(finished, capsys, 1)["whole"] == "stale the configuration changed in optimizer.lr"


def test_results_of_an_adapted_network_depend_on_both_datasets(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapted = ["adapt.data={name:synthetic,shape:[1,4,4],classes:3,data_seed:9}", "adapt.methods=[coral]"]
    changed(own, runs__whole__overrides=adapted)
    assert run(own) == 0
    assert states(own, capsys, 0)["whole"] == "current"
    [file, *_] = folder_of(own).glob("whole/*.json")
    edited(own, data=json.loads(file.read_text())["origin"]["data"].partition("+")[0])
    assert states(own, capsys, 1)["whole"].startswith("stale the data changed: their digest is ")


@pytest.mark.parametrize(
    ("overrides", "run_of_row", "reason"),
    [
        # Refused by the check of the configuration, with the whole table.
        (["parallelism=sync_data", "parallelism.workers=30"], "refused", "runs.parts: train.batch_size=8 is smaller"),
        (["experiment=mnist_lenett"], "refused", "runs.parts: experiment=mnist_lenett: no such option"),
        (["model.hiden=[3]"], "refused", "runs.parts: model.hiden: no such key"),
        # Refused by the strategy, when it plans this network.
        (["parallelism=async_data", "parallelism.servers=9"], "parts", "refused parallelism.servers=9"),
    ],
)
def test_a_run_that_cannot_be_planned_is_refused(
    own: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], run_of_row: str, reason: str
) -> None:
    changed(own, runs__parts__overrides=overrides)
    assert states(own, capsys, 1)[run_of_row].startswith(reason)


def test_the_planned_memory_is_compared_with_that_of_the_file(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(own, runs__parts__memory_gib=0.1)
    reason = "refused without its data, the run needs 0.15 GiB of memory, the file states 0.10 GiB; state the"
    assert states(own, capsys, 1)["parts"].startswith(reason)
    changed(own, runs__parts__memory_gib=0.2)
    assert states(own, capsys, 0)["parts"] == "unchecked it was not run"


def test_data_that_do_not_fit_are_stated_and_the_run_is_tried(
    own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "usable_memory", lambda: 1 << 29)
    tried = []
    monkeypatch.setattr(checking, "first_steps", lambda experiment, _: tried.append(experiment.facts.train_examples))
    changed(own, base=[text if "examples=" not in text else "data.examples=100000000" for text in TABLE["base"]])
    reason = r"unchecked the data take \S+ GiB of memory in 1 process\(es\), the rest of the run 0.15 GiB, and .* 0.50"
    assert re.match(reason, states(own, capsys, 0)["parts"])
    assert len(tried) == 2
    assert max(tried) < 1000, "few synthetic examples of the same shape"
    monkeypatch.setattr(checking, "usable_memory", lambda: 1 << 20)
    assert "refused without its data, the run needs 0.15 GiB" in states(own, capsys, 1)["parts"]


def test_a_name_or_all_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "check"]) == 2
    assert "expected the name of a table, or --all" in capsys.readouterr().err
