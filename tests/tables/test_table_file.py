"""The file of a table: the error message lists all faults with their keys."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.config.conf_dir import conf_dir
from runner.errors import ConfigError
from runner.tables.table_file import find_table, read_table
from tests.tables import edited
from tests.tables.own_table import COUNTS, TABLE

ONE = {"printed": "1", "paper": "book", "confidence": "S"}


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"seeds": []}, "seeds: [], expected a list such as [1, 2, 3, 4, 5]"),
        ({"seeds": [1, 1]}, "seeds: [1, 1], expected each seed once"),
        ({"kind": "small"}, "reduced: '', expected a list of the smaller sizes"),
        ({"columns__loss__read": "loss"}, "columns.loss.read: 'loss', expected a metric such as test/accuracy, or one"),
        ({"columns__early__at": {"epochs": 1}}, "columns.early.at: {'epochs': 1}, expected {updates: N} or {examples"),
        ({"columns__loss__relative_to": "x"}, "columns.loss.relative_to: 'x', expected one of the runs whole, parts"),
        ({"columns__loss__gain": True}, "columns.loss.gain: True, expected only with `relative_to`"),
        ({"columns__loss__layers": ["conv"]}, "columns.loss.layers: ['conv'], expected none for the kind measured"),
        ({"columns__difference__relative_to": "whole"}, "difference.relative_to: 'whole', expected none for weight_d"),
        ({"rows__whole__cells__loss": {"factor": 0.5}}, "cells.loss.factor: 0.5, expected only with `relative_to`"),
        ({"rows__whole__cells__loss": {"fitted": "rate"}}, "loss.fitted: 'rate', expected none for the kind measured"),
        ({"claims__equal__test": "permutation"}, "claims.equal.test: 'permutation', expected none for at_most"),
        ({"runs__whole__against": "parts"}, "runs.whole.against: 'parts', expected an earlier run"),
        ({"rows__whole__cells__difference": {}}, "rows.whole.cells.difference: reads weight_difference, but the run "),
        ({"claims__equal__cells": ["parts/diference"]}, "did you mean 'parts/difference'?"),
        ({"claims__equal__limit": None}, "claims.equal.limit: None, expected a finite number for at_most"),
        ({"claims__equal__limit": math.nan}, "claims.equal.limit: nan, expected a finite number for at_most"),
        (
            {"claims__lower__relation": "equivalent", "claims__lower__margin": math.inf},
            "claims.lower.margin: inf, expected a finite number for equivalent",
        ),
        ({"claims__equal__cells": ["x"]}, "claims.equal.cells: 'x', expected ROW/COLUMN of a cell of the table"),
        ({"claims__lower__margin": 1.0}, "claims.lower.margin: 1.0, expected none for lowest"),
        ({"claims__lower__cells": ["whole/loss"]}, "expected 2 or more for lowest"),
        ({"claims__lower__relation": "below"}, "relation: 'below', expected one of ascending, lowest, highest"),
        (
            {"kind": "small", "reduced": "all", "rows__whole__cells__loss__published": [{**ONE, "tolerance": "1"}]},
            "rows.whole.cells.loss.published[0].tolerance: '1', expected none: a value of a reduced",
        ),
        ({"rows__whole__cells__loss__tolerance": "1"}, "unknown ['tolerance']"),
        ({"runs__../evil": {}}, "runs: '../evil', expected a name of letters, digits and _ . -"),
        ({"rows__a/b": {"title": "x", "run": "whole"}}, "rows: 'a/b', expected a name"),
        ({"claims__lower__cells": ["whole/loss", "parts/difference"]}, "expected cells of one quantity"),
    ],
)
def test_a_wrong_file_of_runs_is_refused(edits: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refusal(edited(TABLE, **edits), tmp_path)


@pytest.mark.parametrize(
    ("edits", "messages"),
    [
        ({"kind": "guess"}, ["kind: 'guess', expected one of count, simulated, measured, small"]),
        ({"columns__all__read": "seconds"}, ["columns.all.read: 'seconds', expected one of parameters, multiply_adds"]),
        ({"rows__one__run": "four"}, ["rows.one.run: 'four', expected one of the runs one, two", "runs.one: no row"]),
        ({"rows__three__missing": ""}, ["rows.three: expected the key `run`, or the key `missing` with a reason"]),
        ({"rows__one__cells__more": {}}, ["rows.one.cells.more: expected one of the columns all, macs"]),
        (
            {"rows__one__cells__macs__published": [{**ONE, "paper": "film"}]},
            ["rows.one.cells.macs.published[0].paper: 'film', expected one of book"],
        ),
        ({"rows__one__cells__macs__published": [{**ONE, "confidence": "X"}]}, ["confidence: 'X', expected one of S"]),
        ({"rows__one__cells__macs__published": [{**ONE, "printed": "many"}]}, ["printed: 'many', expected a number"]),
        ({"rows__one__cells__macs__published": [{**ONE, "tolerance": "x"}]}, ["tolerance: 'x', expected 'rounding'"]),
        ({"rows__one__cells__macs__published": [{**ONE, "tolerance": "-5"}]}, ["tolerance: '-5', expected 'rounding'"]),
        (
            {"claims": {"less": {"text": "t", "cells": ["one/all", "two/all"], "relation": "ascending"}}},
            ["claims.less.relation: 'ascending', expected at_most in a table of counts"],
        ),
        (
            {"claims": {"less": {"text": "t", "cells": ["one/all"], "relation": "at_most", "test": "permutation"}}},
            ["claims.less.test: 'permutation', expected none for the kind count"],
        ),
        ({"titel": "x"}, ["unknown ['titel']"]),
    ],
)
def test_a_wrong_file_of_counts_is_refused(edits: dict[str, Any], messages: list[str], tmp_path: Path) -> None:
    found = refusal(edited(COUNTS, **edits), tmp_path)
    assert all(message in found for message in messages), found


def refusal(document: dict[str, Any], folder: Path) -> str:
    """Return the message for the file of a table; each line begins with the path."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    with pytest.raises(ConfigError) as caught:
        read_table(path)
    assert all(line.startswith(f"{path}: ") for line in str(caught.value).splitlines())
    return str(caught.value)


def test_an_unknown_table_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no table 'network_size': did you mean 'network_sizes'"):
        find_table("network_size", [conf_dir()])
