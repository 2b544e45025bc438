"""The log of a run, the part of the log that a terminal shows, and text for terminals."""

import json
import logging
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.system.console import NOT_ON_TERMINAL, logging_to
from runner.system.text import ascii_only, json_text, printable, printable_lines, text_table

log = logging.getLogger("runner.tests")


def test_the_terminal_shows_only_warnings_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.log"
    with logging_to(path):
        log.info("decided")
        log.warning("slower: token=abcdef")
        log.warning("known by now", extra=NOT_ON_TERMINAL)
        log.error("lost")
    assert not logging.getLogger("runner").handlers
    shown = ["runner: warning: slower: token=[redacted]", "runner: error: lost"]
    assert capsys.readouterr().err.splitlines() == shown
    lines = [re.sub(r".* (\w+) [\w.]+: ", r"\1 ", line) for line in path.read_text().splitlines()]
    assert lines == ["INFO decided", "WARNING slower: token=[redacted]", "WARNING known by now", "ERROR lost"]


def test_a_closed_terminal_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings come from any thread, for example the one that writes tracking records, which logging must not end."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", buffering=1) as gone, logging_to(tmp_path / "run.log"):
        monkeypatch.setattr("sys.stderr", gone)
        log.warning("the store does not answer")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), gone.fileno())  # lets close() flush the buffer
    assert "the store does not answer" in (tmp_path / "run.log").read_text()


def test_text_of_other_processes_is_escaped_and_shortened() -> None:
    assert printable("\x1b[2J\u202eoops\n") == "\\x1b[2J\\u202eoops\\n"
    assert printable("x" * 500, limit=3) == "xxx... (500 characters)"
    assert printable_lines("one\ntwo\tx\nthree\x00\n", lines=2) == ["two x", "three\\x00"]
    assert ascii_only("é\n") == "\\xe9\n"


@given(st.text(st.characters()))
def test_any_text_is_printable_and_on_request_ascii(text: str) -> None:
    assert printable(text, limit=10_000).isprintable()
    assert len(ascii_only(text).encode("ascii")) == len(ascii_only(text))


def test_numbers_that_are_not_finite_are_text_in_json() -> None:
    found = json_text({"a": [1.5, math.nan], "b": {"c": (np.float64("-inf"), 2)}})
    assert json.loads(found) == {"a": [1.5, "nan"], "b": {"c": ["-inf", 2]}}


SIZES = [("conv", "1,000", "-"), ("dense", "20", "3")]


@pytest.mark.parametrize(
    ("headers", "rows", "ruled", "expected"),
    [
        (("layer", "size", "n"), SIZES, False, ["layer   size  n", "conv   1,000  -", "dense     20  3"]),
        (("layer", "n"), [("conv", "12")], True, ["layer   n", "-----  --", "conv   12"]),
        (("layer", "size"), [], False, ["layer  size"]),
        (("x", "r2"), [("a", "-12.5"), ("b", "0.25")], False, ["x     r2", "a  -12.5", "b   0.25"]),
    ],
)
def test_a_table_aligns_text_to_the_left_and_numbers_to_the_right(
    headers: tuple[str, ...], rows: list[tuple[str, ...]], ruled: bool, expected: list[str]
) -> None:
    assert text_table(headers, rows, ruled=ruled).splitlines() == expected
