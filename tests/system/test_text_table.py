"""The one table of text."""

from __future__ import annotations

from runner.system.text_table import text_table

ROWS = [("conv", "1,000", "-"), ("dense", "20", "3")]


def test_text_lies_to_the_left_and_columns_of_numbers_to_the_right() -> None:
    assert text_table(("layer", "size", "n"), ROWS).splitlines() == [
        "layer   size  n",
        "conv   1,000  -",
        "dense     20  3",
    ]


def test_a_line_may_part_the_headers_from_the_rest() -> None:
    assert text_table(("layer", "n"), [("conv", "12")], ruled=True).splitlines() == [
        "layer   n",
        "-----  --",
        "conv   12",
    ]


def test_of_nothing_the_headers_are_left() -> None:
    assert text_table(("layer", "size"), []) == "layer  size"
