"""Tables of the sizes of networks: verdicts on counts, the verb, and the committed results."""

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from runner.cli import main
from runner.commands import table
from runner.tables.results import folder_of
from runner.tables.statistics import summary
from runner.tables.table import COUNT
from runner.tables.table_file import table_names
from runner.tables.verdict import Published, verdict
from tests.docs import tables
from tests.models.test_sizes import FACTS
from tests.refusal import Capture, refused
from tests.tables import edited
from tests.tables.own_table import COUNTS, FILES, command, committed, refused_run, run, write


def test_committed_counts_are_current_and_contradict_one_value_of_a_paper() -> None:
    found = committed("network_sizes")
    verdicts = Counter(line.verdict for line in found.lines)
    assert found.table.kind == COUNT
    assert not verdicts.keys() & {"differs", "stale", "missing"}
    # No source names the layers that make up the whitepaper's 13.6 million parameters of Inception-BN.
    failing = [(line.cell, line.published) for line in found.lines if line.verdict == "fails"]
    assert failing == [("inception_bn/parameters", "13.6 M")]


def test_the_page_of_tables_is_made_of_the_committed_results() -> None:
    assert tables.PAGE.read_text() == tables.page(), "renew the page with `python -m tests.docs.tables`"


FACTS_OF_RUNS = {
    "alexnet": "alexnet crop=ceil",
    "alexnet_footnote": "alexnet conv4=384",
    "overfeat": "overfeat",
    "vgg_a": "vgg_a",
    "googlenet": "googlenet lrn=false dropout=0",
    "resnet110": "resnet-110 original",
    "resnet164": "resnet-164",
    "resnet1001": "resnet-1001",
    "resnet1202": "resnet-1202 original",
    "alexnet_2012": "alexnet_2012",
    "vgg_d": "vgg_d",
    "googlenet_heads": "googlenet auxiliary_weight=0.3",
    "inception_bn": "inception_bn",
    "inception_v3": "inception_v3 auxiliary_weight=0",
    "inception_v3_head": "inception_v3",
    "inception_v3_tpu": "inception_v3, 1001 classes",
    "resnet101": "resnet-101 original",
    "resnet152": "resnet-152 original",
    "resnet152_preactivation": "resnet-152",
    "resnet200": "resnet-200 original",
    "resnet200_preactivation": "resnet-200",
    "resnet164_cifar100": "resnet-164, 100 classes",
    "resnet1001_cifar100": "resnet-1001, 100 classes",
    "speech": "distbelief_speech",
}
"""Run of the table -> the facts about the same network, from another counter."""


def test_committed_counts_equal_those_of_another_counter() -> None:
    results = committed("network_sizes").results
    found = {run: results[run].current[None].values for run in FACTS_OF_RUNS}
    counts = {run: (values["parameters"], values["multiply_adds"]) for run, values in found.items()}
    facts = {run: FACTS[name] for run, name in FACTS_OF_RUNS.items()}
    assert counts == {run: (each.parameters, each.multiply_adds) for run, each in facts.items()}


@pytest.mark.parametrize(
    ("value", "printed", "confidence", "tolerance", "expected"),
    [
        (10_249_999, "10.2 M", "S", "rounding", "passes"),
        (10_250_000, "10.2 M", "P", "rounding", "passes"),
        (10_250_001, "10.2 M", "S", "rounding", "fails"),
        (10_149_999, "10.2 M", "S", "rounding", "fails"),
        (1234, "1,234", "C", "rounding", "agrees"),
        (1235, "1,234", "D", "rounding", "differs"),
        (1.6e9, "2 G", "S", "rounding", "passes"),
        (1.4e9, "2 G", "S", "rounding", "fails"),
        (104, "100", "S", "4 %", "passes"),
        (105, "100", "S", "4 %", "fails"),
        (95, "100", "S", "5", "passes"),
        (0.4326, "43.3 %", "S", "0.04", "passes"),
        (0.4326, "43.3 %", "S", "0.03", "fails"),
        (10_299_999, "10.2 M", "S", "0.1", "passes"),
        (0.0829, "81 ms", "S", "2", "passes"),
        (0.0831, "81 ms", "S", "2", "fails"),
        (-5, "-5.0", "S", "0", "passes"),
        (1, "1", "P2", "rounding", ""),
        (1, "1", "R", "rounding", ""),
        (1, "1", "S", "", ""),
        (float("nan"), "1", "S", "rounding", "fails"),
    ],
)
def test_a_value_is_compared_with_the_printed_number(
    value: float, printed: str, confidence: str, tolerance: str, expected: str
) -> None:
    published = Published(printed, "paper", confidence, tolerance=tolerance)
    assert verdict(summary([value]), published, "exact") == expected


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The file of a table in a folder of YAML files."""
    return write(tmp_path / "conf" / "table" / "mine.yaml", COUNTS)


def verdicts(own: Path, capsys: Capture) -> list[str]:
    capsys.readouterr()
    assert main(command(own, "export", "--format", "json")) == 0
    return [line["verdict"] for line in json.loads(capsys.readouterr().out)["lines"]]


def test_values_are_computed_once_and_again_after_a_change(own: Path, capsys: Capture) -> None:
    assert verdicts(own, capsys) == ["missing"] * 5
    assert run(own) == 0
    assert len(capsys.readouterr().err.splitlines()) == 2
    # (8 * 8 + 1) * 3 + (3 + 1) * 10 parameters, 64 * 3 + 3 * 2 + 2 * 10 multiply-adds
    assert verdicts(own, capsys) == ["passes", "", "", "differs", "missing"]
    written = {path: path.read_bytes() for path in folder_of(own).glob("*/*")}
    assert run(own) == 0
    assert capsys.readouterr().err == "", "nothing is computed twice"
    own.write_text(own.read_text().replace("model.hidden=[3,2]", "model.hidden=[3,4]"))
    assert verdicts(own, capsys) == ["passes", "", "stale", "stale", "missing"]
    assert main(command(own, "show")) == 0
    text = capsys.readouterr().out
    assert "Two layers: the configuration changed in model.hidden since the value was computed." in text
    assert "Three layers: nobody built it." in text
    message = refused_run(own, capsys)
    assert "runs.two has stored results of another configuration, with other model.hidden; state the reason" in message
    own.write_text(own.read_text().replace("model.hidden=[3,4]", "model.hidden=[3,4]\n    changed: it was too small"))
    assert run(own) == 0
    design = (
        "Earlier configuration of two (other model.hidden), parameters: mean 233 over 1 seed; changed because: it was"
    )
    assert design in capsys.readouterr().out
    assert all(path.read_bytes() == before for path, before in written.items()), "earlier results stay"
    assert verdicts(own, capsys)[2:4] == ["", "differs"]


def test_the_list_and_exports(own: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"inception_servers": FILES["inception_servers"]}
    monkeypatch.setattr(table, "table_names", lambda folders: {**table_names(folders[1:]), **short})
    run(own)
    capsys.readouterr()
    assert main(["table", "list", "--config-dir", str(own.parents[1])]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert rows["mine"].split()[1:5] == ["count", "4", "of", "5"]
    assert rows["inception_servers"].split()[1] == "simulated"
    for form in ("md", "csv", "text"):
        assert main(command(own, "export", "--format", form, "--output", str(tmp_path / form))) == 0
    page = (tmp_path / "md").read_text()
    assert "| One layer | parameters | count | 235 | 235 | A book [S] | +0.00% | passes |" in page
    assert "| Two layers | parameters | count | 233 | 1 K | A book, p. 3 [S] | -76.70% |  |" in page
    assert "passes (1), differs (1), missing (1)." in page
    with (tmp_path / "csv").open() as file:
        assert [float(row["ours"] or "nan") for row in csv.DictReader(file)][:4] == [235, 222, 233, 218]
    assert "---" in (tmp_path / "text").read_text()


@pytest.mark.parametrize(("unit", "shown"), [("", "0.9915"), ("%", "99.15 %")])
def test_a_ratio_of_counts_is_not_rounded_to_a_whole_number(own: Path, capsys: Capture, unit: str, shown: str) -> None:
    ratio = {"title": "ratio", "read": "parameters", "relative_to": "one", "unit": unit}
    write(own, edited(COUNTS, columns__ratio=ratio, rows__two__cells__ratio={}))
    assert run(own) == 0
    assert re.search(rf"Two layers +ratio +count +{shown}$", capsys.readouterr().out, re.MULTILINE)


def test_a_damaged_result_is_refused(own: Path, capsys: Capture) -> None:
    run(own)
    [path] = (folder_of(own) / "one").iterdir()
    path.write_text('{"version": 1}')
    capsys.readouterr()
    text = refused(command(own, "show"), capsys, code=3)
    assert f"{path} is damaged: " in text
    assert "delete it and run the table again" in text


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(own: Path, capsys: Capture) -> None:
    folder_of(own).parent.write_text("a file in the place of the folder")
    text = refused_run(own, capsys, code=4)
    assert "cannot write into " in text
    assert "choose another folder with --results DIR" in text


@pytest.mark.parametrize("given", ["hydra/launcher=joblib", "--budget=2h", "optimizer.lr=1"])
def test_arguments_of_training_runs_are_refused(own: Path, capsys: Capture, given: str) -> None:
    text = refused_run(own, capsys, given)
    assert f"{given.partition('=2')[0]}: the runs of a table of the kind count are computed, not trained" in text
    assert not folder_of(own).exists()
