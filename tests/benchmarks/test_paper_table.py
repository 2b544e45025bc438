"""Benchmark tables: the rounds that are measured and stored, failures, refusals, and the table of four networks."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import paper_table
from benchmarks.cases import CASES
from benchmarks.experiments import timed_experiment
from benchmarks.limit import multiply_adds
from benchmarks.network import forward_layers
from benchmarks.paper_table import Turn, main, take_turn
from benchmarks.process import SubjectError
from benchmarks.subjects import SubjectSpec
from benchmarks.timed_single import CLIENTS
from runner.cli import main as runner
from runner.commands.table_files import TableReader, current
from runner.config.conf_dir import conf_dir
from runner.config.schema import Config
from runner.tables.results import folder_of
from runner.tables.table import COUNT
from runner.tables.table_file import find_table
from runner.training.build import workload_of
from tests.refusal import Capture, refused
from tests.tables import edited

FAKE = SubjectSpec("fake", "", "tests.benchmarks.fake_subject", ("falls",))
TABLE: dict[str, Any] = {
    "title": "Two networks",
    "kind": "benchmark",
    "seeds": [1, 2],
    "base": [*CASES["smoke"].overrides(threads=1), "train.batch_size=2"],
    "papers": {"book": {"cite": "A book"}},
    "columns": {
        "runner": {"title": "runner", "read": "runner", "unit": "ms", "best": "lowest"},
        "jax": {"title": "JAX", "read": "jax-nhwc", "unit": "ms", "best": "lowest"},
        "old": {"title": "Old library", "missing": "published for a machine that does not exist any more"},
    },
    "runs": {"two": {}, "three": {"overrides": ["train.batch_size=3"]}},
    "rows": {
        "two": {
            "title": "Batch 2",
            "run": "two",
            "cells": {
                "runner": {},
                "jax": {},
                "old": {"published": [{"printed": "81 ms", "paper": "book", "confidence": "S"}]},
            },
        },
        "three": {"title": "Batch 3", "run": "three", "cells": {"runner": {}}},
    },
}


class Turns:
    """Stands in for the turns of libraries: a step takes one second more than in the previous turn.

    losses: name -> loss; 2 by default. failing: a name, whose turns fail.
    """

    def __init__(self) -> None:
        self.prepared: list[list[str]] = []
        self.taken: list[tuple[str, int]] = []
        self.losses: dict[str, float] = {}
        self.failing = ""

    def __call__(self, spec: SubjectSpec, config: Config, log: Path) -> Turn:
        assert Path(spec.arguments[-1]).is_dir()
        if spec.name == self.failing:
            raise SubjectError("out of memory")
        self.taken.append((spec.name, config.seed))
        seconds = float(len(self.taken))
        return Turn([seconds, seconds, 99.0], self.losses.get(spec.name, 2.0), {spec.name: "1.0"})


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Replace the turns of all libraries, whose environments count as installed."""
    found = Turns()
    monkeypatch.setattr(paper_table, "prepare", lambda overrides, folder: found.prepared.append(overrides[-2:]))
    monkeypatch.setattr(paper_table, "take_turn", found)
    monkeypatch.setattr(paper_table, "python_of", lambda environment: Path("python"))
    return found


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a table in a folder of YAML files; the working directory is empty."""
    path = tmp_path / "conf" / "table" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(TABLE, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    return path


def changed(own: Path, **edits: Any) -> None:
    """Write the table with other values, see :func:`edited`."""
    own.write_text(yaml.safe_dump(edited(TABLE, **edits), sort_keys=False))


def measure(own: Path) -> int:
    return main(["mine", "--config-dir", str(own.parents[1])])


def test_each_round_is_measured_once_and_stores_where_its_values_come_from(
    own: Path, turns: Turns, capsys: Capture
) -> None:
    assert measure(own) == 0
    assert turns.taken == [
        *(("runner", 1), ("jax-nhwc", 1), ("runner", 1)),
        *(("jax-nhwc", 2), ("runner", 2), ("runner", 2)),
    ], "each round begins with the next library, and measures only the libraries whose cells read the run"
    assert turns.prepared == [
        [batch, f"seed={seed}"] for seed in (1, 2) for batch in ("train.batch_size=2", "train.batch_size=3")
    ], "each round has its own initial weights"
    results = TableReader().read(own).results()
    assert {seed: result.values for seed, result in results["two"].current.items()} == {
        1: {"runner": 1.0, "jax-nhwc": 2.0},
        2: {"jax-nhwc": 4.0, "runner": 5.0},
    }
    origin = results["two"].current[1].origin
    assert (origin.versions["jax-nhwc"], origin.machine["threads"]) == ("1.0", "1")
    assert {"cpu", "cores", "vectors"} <= origin.machine.keys()
    next(folder_of(own).glob("two/seed-2.*")).unlink()
    turns.taken.clear()
    assert measure(own) == 0
    assert turns.taken == [("jax-nhwc", 2), ("runner", 2)], "only the missing round is measured"
    capsys.readouterr()
    assert runner(["table", "show", "mine", "--config-dir", str(own.parents[1])]) == 0
    shown = capsys.readouterr().out
    assert "Rounds 1, 2; " in shown
    assert "jax-nhwc 1.0" in shown
    assert "Old library: published for a machine that does not exist any more." in shown
    lines = {line.cell: line for line in current(TableReader().read(own)).lines}
    assert (lines["two/old"].published, lines["two/old"].verdict) == ("81 ms", "missing")
    assert lines["two/runner"].ours == 1.5
    assert runner(["table", "export", "mine", "--format", "latex", "--config-dir", str(own.parents[1])]) == 0
    printed = capsys.readouterr().out
    assert "Batch 2 & \\textbf{\\boldmath 1500 " in printed
    assert printed.count("textbf") == 3, "the best of each row is in bold; in the first row, both are equal"
    assert runner(["table", "check", "mine", "--config-dir", str(own.parents[1])]) == 0
    assert capsys.readouterr().out.count("unchecked  times are measured, not checked") == 2


@pytest.mark.parametrize(
    ("losses", "failing", "message"),
    [
        ({}, "jax-nhwc", "two, round 1: jax-nhwc: out of memory"),
        ({"jax-nhwc": 2.01}, "", "two, round 1: jax-nhwc: loss 2.01, expected 2.0 as by runner"),
        ({"jax-nhwc": float("nan")}, "", "two, round 1: jax-nhwc: loss nan, expected 2.0 as by runner"),
    ],
)
def test_a_round_in_which_a_library_fails_remains_missing(
    losses: dict[str, float], failing: str, message: str, own: Path, turns: Turns, capsys: Capture
) -> None:
    turns.losses, turns.failing = losses, failing
    assert measure(own) == 1
    assert message in capsys.readouterr().err
    results = TableReader().read(own).results()
    assert (list(results["two"].current), list(results["three"].current)) == ([], [1, 2])


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"columns__jax__read": "jax-nwhc"}, "columns.jax.read: 'jax-nwhc', expected one of runner, torch-eager"),
        ({"columns__jax__read": "test/loss"}, "columns.jax.read: 'test/loss', expected a library such as torch-eager"),
        ({"columns__jax__missing": "x"}, "columns.jax.read: 'jax-nhwc', expected the value that cells read, or the"),
        ({"rows__two__cells__jax": {"published": [{"printed": "8 ms", "paper": "book", "confidence": "S"}]}}, ""),
        (
            {
                "rows__two__cells__jax": {
                    "published": [{"printed": "8 ms", "paper": "book", "confidence": "S", "tolerance": "5 %"}]
                }
            },
            "tolerance: '5 %', expected none: times on two machines support only an order or a ratio",
        ),
        ({"seeds": []}, "seeds: [], expected a list such as [1, 2, 3, 4, 5]"),
        ({"runs__two__overrides": ["precision=float64"]}, "runs.two: precision=float64: expected float32 or bfloat16"),
        ({"kind": "measured", "columns__jax__read": "test/loss"}, "columns.runner.read: 'runner', expected a metric"),
    ],
)
def test_a_wrong_table_is_refused_before_anything_is_measured(
    edits: dict[str, Any], message: str, own: Path, turns: Turns, capsys: Capture
) -> None:
    changed(own, **edits)
    assert measure(own) == bool(message)
    assert message in capsys.readouterr().err
    assert bool(turns.taken) == (not message)


def test_a_changed_run_needs_a_reason(own: Path, turns: Turns, capsys: Capture) -> None:
    assert measure(own) == 0
    changed(own, runs__two__overrides=["train.batch_size=4"])
    assert measure(own) == 1
    assert (
        "runs.two has stored results of another configuration, with other train.batch_size" in capsys.readouterr().err
    )


def test_a_library_that_is_not_installed_is_named(own: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = SubjectSpec("jax-nhwc", "nonesuch", "benchmarks.peers.nonesuch")
    monkeypatch.setattr(paper_table, "SUBJECTS", {**paper_table.SUBJECTS, "jax-nhwc": missing})
    assert measure(own) == 1
    assert "not installed: run make bench-peers ARGS=nonesuch" in capsys.readouterr().err
    assert not folder_of(own).exists()


def test_other_verbs_name_the_command_that_measures(own: Path, capsys: Capture) -> None:
    text = refused(["table", "run", "mine", "--config-dir", str(own.parents[1])], capsys)
    assert "timed next to other libraries, not trained" in text
    assert "run `python -m benchmarks table mine`" in text
    assert main(["network_sizes"]) == 1
    assert f"kind: '{COUNT}', expected benchmark; run `runner table run` instead" in capsys.readouterr().err


def test_a_turn_has_one_discarded_step(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_table, "TURN_S", 0.0)
    turn = take_turn(FAKE.on("folder"), TableReader().read(own).configs["two"], tmp_path / "log")
    assert (len(turn.seconds), turn.loss, turn.versions["fake"]) == (1, 2.0, "1.0")


@pytest.mark.parametrize(
    ("run", "shape", "multiplications"),
    [
        ("alexnet", (128, 3, 224, 224), 714_188_480),
        ("overfeat", (128, 3, 231, 231), 2_801_403_904),
        ("oxfordnet", (64, 3, 224, 224), 7_609_090_048),
        ("googlenet", (128, 3, 224, 224), 1_582_671_872),
    ],
)
def test_the_networks_of_the_slides_have_their_batches_and_omissions(
    run: str, shape: tuple[int, ...], multiplications: int
) -> None:
    overrides = TableReader().read(find_table("one_machine", [conf_dir()])).table.overrides(run)
    experiment = timed_experiment(overrides)
    workload = workload_of(experiment.config, experiment.facts)
    assert (workload.batch_size, *workload.fields["x"].shape) == shape
    program = experiment.program
    assert multiply_adds(program.graph, program.clients[CLIENTS["forward"]]) == shape[0] * multiplications
    assert forward_layers(workload), "layers that a problem cannot contain, such as dropout, are refused"
