"""Plugins of a record and of this process: the same, changed, moved, or on one side only."""

from __future__ import annotations

import pytest

from runner.plugin import changed_plugins, plugin_notes
from runner.plugin.installing import PLUGINS

A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("recorded", "now", "changed", "notes"),
    [
        (None, {}, [], []),
        (None, {"pack.m": A}, [], ["the run has no record of its plugins; not compared with pack.m"]),
        ({"/x/m.py": A, "pack.m": B}, {"/x/m.py": A, "pack.m": B}, [], []),
        ({"pack.m": A}, {"pack.m": B}, [f"plugin pack.m was changed: its SHA-256 was {A}, and is {B}"], []),
        ({"/x/m.py": A}, {"/y/m.py": A}, [], ["plugin /x/m.py is now /y/m.py"]),
        ({"/x/m.py": A}, {"/y/n.py": A}, [], ["plugin /x/m.py is now /y/n.py"]),
        (
            {"/x/m.py": A},
            {"/y/m.py": B},
            [f"plugin /x/m.py (now /y/m.py) was changed: its SHA-256 was {A}, and is {B}"],
            ["plugin /x/m.py is now /y/m.py"],
        ),
        (
            {"/x/m.py": A, "/y/m.py": B},
            {"/y/m.py": B},
            [],
            ["plugin /x/m.py of the run is not given: its content is not available"],
        ),
        ({}, {"pack.m": A}, [], ["plugin pack.m is given, but the run did not have it"]),
    ],
)
def test_what_became_of_plugins_is_told(
    monkeypatch: pytest.MonkeyPatch,
    recorded: dict[str, str] | None,
    now: dict[str, str],
    changed: list[str],
    notes: list[str],
) -> None:
    for reference, sha256 in now.items():
        monkeypatch.setitem(PLUGINS, reference, sha256)
    assert [str(each) for each in changed_plugins(recorded or {})] == changed
    assert list(plugin_notes(recorded)) == notes
