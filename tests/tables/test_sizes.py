"""Tables of the sizes of networks: the file, verdicts on counts, the verb, and the committed results."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.cli import main
from runner.commands.table_files import current, table_files
from runner.config.conf_dir import conf_dir
from runner.errors import ConfigError
from runner.tables.results import folder_of
from runner.tables.statistics import summary
from runner.tables.table import COUNT
from runner.tables.table_file import find_table, read_table, table_names
from runner.tables.verdict import Published, verdict
from tests.docs import tables
from tests.models.test_sizes import FACTS
from tests.refusal import Capture, refused
from tests.tables import edited

FILES = table_names([conf_dir()])


def test_committed_counts_are_current_and_contradict_one_value_of_a_paper() -> None:
    found = current(table_files(FILES["network_sizes"]))
    verdicts = Counter(line.verdict for line in found.lines)
    assert found.table.kind == COUNT
    assert not verdicts.keys() & {"differs", "stale", "missing"}
    # No source says which layers the whitepaper's 13.6 million parameters of Inception-BN count.
    assert [(line.cell, line.published) for line in found.lines if line.verdict == "fails"] == [
        ("inception_bn/parameters", "13.6 M")
    ]


def test_the_page_of_tables_is_made_of_the_committed_results() -> None:
    assert tables.PAGE.read_text() == tables.page(), "renew the page with `python -m tests.docs.tables`"


@pytest.mark.parametrize(
    ("run", "facts"),
    {
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
    }.items(),
)
def test_committed_counts_equal_those_of_another_counter(run: str, facts: str) -> None:
    values = table_files(FILES["network_sizes"]).results()[run].current[None].values
    assert (values["parameters"], values["multiply_adds"]) == (FACTS[facts].parameters, FACTS[facts].multiply_adds)


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


SMALL: dict[str, Any] = {
    "title": "Two networks",
    "kind": "count",
    "base": ["parallelism=single", "model=mlp"],
    "papers": {"book": {"cite": "A book"}},
    "columns": {
        "all": {"title": "parameters", "read": "parameters"},
        "macs": {"title": "macs", "read": "multiply_adds"},
    },
    "runs": {"one": {"overrides": ["model.hidden=[3]"]}, "two": {"overrides": ["model.hidden=[3,2]"]}},
    "rows": {
        "one": {
            "title": "One layer",
            "run": "one",
            "cells": {
                "all": {"published": [{"printed": "235", "paper": "book", "confidence": "S", "tolerance": "rounding"}]},
                "macs": {},
            },
        },
        "two": {
            "title": "Two layers",
            "run": "two",
            "cells": {
                "all": {"published": [{"printed": "1 K", "paper": "book", "where": "p. 3", "confidence": "S"}]},
                "macs": {"published": [{"printed": "230", "paper": "book", "confidence": "C", "tolerance": "1"}]},
            },
        },
        "three": {"title": "Three layers", "missing": "nobody built it", "cells": {"all": {}}},
    },
}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The file of a table in a folder of YAML files."""
    path = tmp_path / "conf" / "table" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(SMALL, sort_keys=False))
    return path


def table(*arguments: str, own: Path) -> int:
    return main(["table", *arguments, "--config-dir", str(own.parents[1])])


def verdicts(own: Path, capsys: Capture) -> list[str]:
    capsys.readouterr()
    assert table("export", "mine", "--format", "json", own=own) == 0
    return [line["verdict"] for line in json.loads(capsys.readouterr().out)["lines"]]


def test_values_are_computed_once_and_again_after_a_change(own: Path, capsys: Capture) -> None:
    assert verdicts(own, capsys) == ["missing"] * 5
    assert table("run", "mine", own=own) == 0
    assert len(capsys.readouterr().err.splitlines()) == 2
    # (8 * 8 + 1) * 3 + (3 + 1) * 10 parameters, 64 * 3 + 3 * 2 + 2 * 10 multiply-adds
    assert verdicts(own, capsys) == ["passes", "", "", "differs", "missing"]
    written = {path: path.read_bytes() for path in folder_of(own).glob("*/*")}
    assert table("run", "mine", own=own) == 0
    assert capsys.readouterr().err == "", "nothing is computed twice"
    own.write_text(own.read_text().replace("model.hidden=[3,2]", "model.hidden=[3,4]"))
    assert verdicts(own, capsys) == ["passes", "", "stale", "stale", "missing"]
    assert table("show", "mine", own=own) == 0
    text = capsys.readouterr().out
    assert "Two layers: the configuration changed in model.hidden since the value was computed." in text
    assert "Three layers: nobody built it." in text
    message = refused(["table", "run", "mine", "--config-dir", str(own.parents[1])], capsys)
    assert "runs.two has results of an earlier design, which differs in model.hidden; state the reason" in message
    own.write_text(
        own.read_text().replace("- model.hidden=[3,4]", "- model.hidden=[3,4]\n    changed: it was too small")
    )
    assert table("run", "mine", own=own) == 0
    text = capsys.readouterr().out
    assert (
        "Earlier design of two (other model.hidden), parameters: mean 233 over 1 seed; changed because: it was" in text
    )
    assert all(path.read_bytes() == before for path, before in written.items()), "earlier results stay"
    assert verdicts(own, capsys)[2:4] == ["", "differs"]


def test_a_table_is_listed_and_exported(own: Path, tmp_path: Path, capsys: Capture) -> None:
    table("run", "mine", own=own)
    capsys.readouterr()
    assert table("list", own=own) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert rows["mine"].split()[1:5] == ["count", "4", "of", "5"]
    assert "network_sizes" in rows
    for form in ("md", "csv", "text"):
        assert table("export", "mine", "--format", form, "--output", str(tmp_path / form), own=own) == 0
    page = (tmp_path / "md").read_text()
    assert "| One layer | parameters | count | 235 | 235 | A book [S] | +0.00% | passes |" in page
    assert "| Two layers | parameters | count | 233 | 1 K | A book, p. 3 [S] | -76.70% |  |" in page
    assert "1 passes, 1 differs, 1 missing." in page
    with (tmp_path / "csv").open() as file:
        assert [float(row["ours"] or "nan") for row in csv.DictReader(file)][:4] == [235, 222, 233, 218]
    assert "---" in (tmp_path / "text").read_text()


def test_a_damaged_result_is_refused(own: Path, capsys: Capture) -> None:
    table("run", "mine", own=own)
    [path] = (folder_of(own) / "one").iterdir()
    path.write_text('{"version": 1}')
    capsys.readouterr()
    text = refused(["table", "show", "mine", "--config-dir", str(own.parents[1])], capsys, code=3)
    assert f"{path} is damaged: " in text
    assert "delete it and run the table again" in text


def changed(**edits: Any) -> dict[str, Any]:
    """Return the table with other values, see :func:`edited`."""
    return edited(SMALL, **edits)


ONE = {"printed": "1", "paper": "book", "confidence": "S"}


@pytest.mark.parametrize(
    ("edits", "messages"),
    [
        ({"kind": "guess"}, ["kind: 'guess', expected one of count, simulated, measured, small"]),
        ({"columns__all__read": "seconds"}, ["columns.all.read: 'seconds', expected one of parameters, multiply_adds"]),
        (
            {"rows__one__run": "four"},
            ["rows.one.run: 'four', expected one of the runs one, two", "runs.one: no row"],
        ),
        ({"rows__three__missing": ""}, ["rows.three: expected a run, or the reason `missing` why there is none"]),
        ({"rows__one__cells__more": {}}, ["rows.one.cells.more: expected one of the columns all, macs"]),
        (
            {"rows__one__cells__macs__published": [{**ONE, "paper": "film"}]},
            ["rows.one.cells.macs.published[0].paper: 'film', expected one of book"],
        ),
        ({"rows__one__cells__macs__published": [{**ONE, "confidence": "X"}]}, ["confidence: 'X', expected one of S"]),
        ({"rows__one__cells__macs__published": [{**ONE, "printed": "many"}]}, ["printed: 'many', expected a number"]),
        (
            {"rows__one__cells__macs__published": [{**ONE, "tolerance": "x"}]},
            ["tolerance: 'x', expected 'rounding'"],
        ),
        (
            {"rows__one__cells__macs__published": [{**ONE, "tolerance": "-0.5"}]},
            ["tolerance: '-0.5', expected 'rounding'"],
        ),
        (
            {"claims": {"less": {"text": "t", "cells": ["one/all", "two/all"], "relation": "ascending"}}},
            ["claims.less.relation: 'ascending', expected at_most in a table of counts"],
        ),
        ({"titel": "x"}, ["unknown ['titel']"]),
    ],
)
def test_a_wrong_file_is_refused_with_all_its_faults(own: Path, edits: dict[str, Any], messages: list[str]) -> None:
    own.write_text(yaml.safe_dump(changed(**edits), sort_keys=False))
    with pytest.raises(ConfigError) as caught:
        read_table(own)
    assert all(line.startswith(f"{own}: ") for line in str(caught.value).splitlines())
    for message in messages:
        assert message in str(caught.value)


def test_a_wrong_override_is_refused_with_the_name_of_the_run(own: Path, capsys: Capture) -> None:
    own.write_text(yaml.safe_dump(changed(runs__two__overrides=["model.hiden=[3]"]), sort_keys=False))
    text = refused(["table", "run", "mine", "--config-dir", str(own.parents[1])], capsys)
    assert "runs.two: model.hiden: no such key; did you mean 'hidden'?" in text
    assert not folder_of(own).exists(), "nothing was computed"


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(own: Path, capsys: Capture) -> None:
    folder_of(own).parent.write_text("a file in the place of the folder")
    text = refused(["table", "run", "mine", "--config-dir", str(own.parents[1])], capsys, code=4)
    assert "cannot be written: " in text
    assert "choose another folder with --results DIR" in text


def test_an_unknown_table_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no table 'network_size': did you mean 'network_sizes'"):
        find_table("network_size", [conf_dir()])
