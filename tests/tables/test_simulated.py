"""Tables of simulated times: run, decided without tests, stale after a change of the hardware; the committed table."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.cli import main
from runner.commands.table_files import TableReader, current
from runner.errors import ConfigError
from runner.tables.measured import simulated_times
from runner.tables.results import ResultOrigin, folder_of
from runner.tables.table import SIMULATED
from runner.tables.table_file import read_table
from runner.training.simulation import simulate
from tests.refusal import Capture
from tests.small_runs import small_config
from tests.tables.own_table import FILES, command, committed, refused_run, run, write

PLAIN: dict[str, Any] = yaml.safe_load("""
title: Workers
kind: simulated
base: [cluster=ethernet, model=mlp, data=digits, train.batch_size=96, train.epochs=1]
papers: {own: {cite: own estimate}}
columns:
  hours: {title: hours, read: hours}
  speedup: {title: speedup, read: examples_per_s, relative_to: one}
runs:
  one: {overrides: [parallelism=single]}
  two: {overrides: [parallelism=sync_data, parallelism.workers=2]}
  slow: {overrides: [parallelism=sync_data, parallelism.workers=2, cluster.hardware.step_us=2000]}
rows:
  one:
    title: "1"
    run: one
    cells:
      hours: {published: [{printed: "9", paper: own, confidence: S, tolerance: 1 %}], fitted: flops_per_s}
      speedup: {published: [{printed: "1", paper: own, confidence: S, tolerance: 1 %}]}
  two: {title: "2", run: two, cells: {hours: {}, speedup: {}}}
  slow: {title: "2, slow host", run: slow, cells: {hours: {}}}
claims:
  slower: {text: the host costs time, cells: [two/hours, slow/hours], relation: ascending}
  best: {text: the slow host is best, cells: [slow/hours, two/hours], relation: lowest}
  equal: {text: all are within an hour, cells: [one/hours, two/hours], relation: equivalent, margin: 1.0}
""")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return the file of the table in a folder of YAML files."""
    return write(tmp_path / "conf" / "table" / "workers.yaml", PLAIN)


@pytest.mark.parametrize(("stated", "updates"), [(["simulate.updates=3"], 3), ([], 8)])
def test_on_hardware_with_disturbances_the_stated_updates_or_all_are_simulated(stated: list[str], updates: int) -> None:
    config = small_config("cluster=k20x8_delayed", "parallelism=single", "train.steps=9", *stated)
    found = {count: simulate(config, count).step_s for count in (3, 5, 8)}
    assert len(set(found.values())) == 3
    assert simulated_times(config, ResultOrigin()).values["update_s"] == found[updates]


def test_simulations_are_run_once_decided_without_tests_and_checked(own: Path, capsys: Capture) -> None:
    assert run(own) == 0
    found = current(TableReader().read(own))
    verdicts = {line.cell: (line.verdict, None if line.ours is None else line.ours > 0) for line in found.lines}
    reasons = {line.reason for line in found.lines if line.verdict == "fitted"}
    assert reasons == {"the flops_per_s was fitted to this value"}
    assert verdicts == {
        "one/hours": ("fitted", True),
        "one/speedup": ("passes", True),
        "two/hours": ("", True),
        "two/speedup": ("", True),
        "slow/hours": ("", True),
    }
    assert [(claim.verdict, re.sub(r"[\d.]+(e-\d+)?", "N", claim.evidence)) for claim in found.claims] == [
        ("holds", "values N, N"),
        ("fails", "values N, N"),
        ("holds", "values N, N"),
    ]
    assert "simulated" in capsys.readouterr().out
    assert run(own) == 0
    assert capsys.readouterr().err == ""
    assert main(command(own, "check")) == 0
    for name, state in (("update_s", 0), ("hours", 1)):  # no column reads update_s
        for file in folder_of(own).glob("*/*.json"):
            file.write_text(re.sub(f'("{name}": )[^,}}]+', r"\g<1>9.0", file.read_text()))
        assert main(command(own, "check")) == state
    plain = {**PLAIN, "base": [*PLAIN["base"], "cluster.hardware.message_us=50"]}
    write(own, plain)
    capsys.readouterr()
    assert main(command(own, "check")) == 1
    assert "the configuration changed in cluster.hardware" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": [1, 2]}, r"seeds: \[1, 2\], expected none for the kind simulated"),
        (
            {"columns": {**PLAIN["columns"], "hours": {"title": "hours", "read": "test/loss"}}},
            r"columns.hours.read: 'test/loss', expected one of update_s, hours, examples_per_s, worker_step_median_s, ",
        ),
    ],
)
def test_wrong_tables_of_simulations_are_refused(own: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_table(write(own, {**PLAIN, **change}))


def test_a_run_without_hardware_is_refused_by_its_name(own: Path, capsys: Capture) -> None:
    write(own, {**PLAIN, "base": PLAIN["base"][1:], "runs": {**PLAIN["runs"], "slow": {}}})
    assert "runs.one: cluster.hardware=null: expected a described cluster" in refused_run(own, capsys)


@pytest.mark.parametrize(("rows", "number", "mean", "largest"), [("b", 6, 0.057, 0.114), ("d", 5, 0.0195, 0.03)])
def test_krizhevskys_hours_are_predicted_as_stated(rows: str, number: int, mean: float, largest: float) -> None:
    """The rows b have one fitted value, and the rows d, whose steps are delayed, two."""
    found = committed("krizhevsky_hours")
    hours = [line for line in found.lines if line.cell.startswith(rows) and line.cell.endswith("/hours")]
    errors = [abs(line.difference) for line in hours if line.verdict != "fitted" and line.difference is not None]
    assert len(errors) == number
    assert sum(errors) / number <= mean
    assert max(errors) <= largest
    assert {claim.verdict for claim in found.claims} == {"holds"}


FITTED = {
    "krizhevsky_hours": {"b128_128/hours": 0.0, "d128_128/hours": 0.001, "d256_256/hours": 0.001},
    "null_steps": {"fitted_scalar_1/update": 0.01, "fitted_big_1/update": 0.01},
}
"""Table -> cell to which the hardware was fitted -> the largest relative difference that the fit leaves."""


@pytest.mark.parametrize("name", [name for name, path in FILES.items() if read_table(path).kind == SIMULATED])
def test_fitted_values_are_marked_and_all_others_are_predictions(name: str) -> None:
    found = committed(name)
    left = {line.cell: abs(line.difference or 0.0) for line in found.lines if line.verdict == "fitted"}
    assert left.keys() == FITTED.get(name, {}).keys()
    assert all(difference <= FITTED[name][cell] + 1e-4 for cell, difference in left.items())
    # A value that was read in a summary decides nothing.
    assert {line.verdict for line in found.lines if line.confidence == "P2"} <= {"", "fitted"}


def test_null_steps_with_fitted_links_are_predicted_as_exactly_as_stated() -> None:
    lines = committed("null_steps").lines
    errors = {
        variant: [
            abs(line.difference)
            for line in lines
            if line.cell.startswith(variant) and line.difference is not None and line.verdict != "fitted"
        ]
        for variant in ("assumed", "fitted")
    }
    assert {variant: len(each) for variant, each in errors.items()} == {"assumed": 6, "fitted": 4}
    assert max(errors["assumed"]) <= 0.74
    assert max(errors["fitted"]) <= 0.31
