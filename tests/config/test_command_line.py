"""Overrides and options of a command line, in whatever order they were typed."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from runner.config.command_line import misplaced_verb, overrides_first, quoted, quoting_hint


@pytest.mark.parametrize(
    ("typed", "understood"),
    [
        ([], []),
        (["a=1", "-m", "b=1,2"], ["a=1", "b=1,2", "-m"]),
        (["--cfg", "job", "a=1", "--package", "model"], ["a=1", "--cfg", "job", "--package", "model"]),
        (["--pack", "model", "a=1"], ["a=1", "--pack", "model"]),
        (["-cd", "lr=1/conf", "~b", "-cn", "mine", "+c=2"], ["~b", "+c=2", "-cd", "lr=1/conf", "-cn", "mine"]),
        (["--config-dir=conf", "a=1"], ["a=1", "--config-dir=conf"]),
        (["-sc", "install=bash"], ["install=bash", "-sc"]),
    ],
    ids=" ".join,
)
def test_overrides_come_first_and_options_keep_their_values(typed: list[str], understood: list[str]):
    assert overrides_first(typed) == understood


def test_settings_of_ours_come_behind_overrides_and_before_options():
    assert overrides_first(["a=1", "--info", "-m", "b=2"], last=["c=3"]) == ["a=1", "b=2", "c=3", "--info", "-m"]


def test_a_verb_is_found_behind_options_but_not_as_the_value_of_one():
    assert misplaced_verb(["--config-dir", "conf", "list", "models"], {"list"}) == "list"
    assert misplaced_verb(["--config-name", "list", "a=1"], {"list"}) is None


@pytest.mark.parametrize(
    ("override", "typed"),
    [
        ("init_from=runs/lr=0.1", """'init_from="runs/lr=0.1"'"""),
        ("hydra.run.dir=my run é", """'hydra.run.dir="my run é"'"""),
        ('data.path=a"b', """'data.path="a\\"b"'"""),
        ("data.path=a\\b c", """'data.path="a\\b c"'"""),
        ("seed=[1", ""),
        ("list", ""),
    ],
)
def test_what_quotes_make_readable_is_shown_with_them(override: str, typed: str):
    hint = quoting_hint(override)
    assert hint.endswith(typed)
    assert bool(hint) == bool(typed)


@given(st.text("ab \\'\"=,$é"), st.sampled_from("'\""))
def test_a_quoted_value_is_read_as_it_was(text: str, sign: str):
    assert OverridesParser.create().parse_override(f"key={quoted(text, sign)}").value() == text
