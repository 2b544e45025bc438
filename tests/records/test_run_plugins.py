"""plugins.json: what is kept of the plugins of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import DataError
from runner.records.run_directory import SUMMARY_FILE
from runner.records.stored_run import PLUGINS_FILE, read_plugins, write_plugins
from runner.records.summary import Summary


def test_what_is_written_is_read_and_no_plugins_are_not_the_same_as_none_kept(tmp_path: Path) -> None:
    assert read_plugins(tmp_path) is None
    write_plugins(tmp_path, {"/x/m.py": "a" * 64})
    assert read_plugins(tmp_path) == {"/x/m.py": "a" * 64}
    write_plugins(tmp_path, {})
    assert read_plugins(tmp_path) == {}
    (tmp_path / PLUGINS_FILE).unlink()
    Summary("0123", "failed", "", "", "", 1, {}, "", "", plugins={"pack.m": "b" * 64}).write(tmp_path / SUMMARY_FILE)
    assert read_plugins(tmp_path) == {"pack.m": "b" * 64}, "as an earlier version kept them"


@pytest.mark.parametrize("text", ["", '{"m": 3}'])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / PLUGINS_FILE).write_text(text)
    with pytest.raises(DataError, match=r"plugins\.json is damaged: .*; expected references and the SHA-256"):
        read_plugins(tmp_path)
