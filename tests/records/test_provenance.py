from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from runner.records.provenance import CodeState, Provenance, command_line, provenance_here, provenance_tags
from runner.system.machine import usable_cores, usable_memory


def test_the_command_can_be_typed_again_without_its_secrets() -> None:
    line = command_line(["/venv/bin/runner", "parallelism.shard={fc1: column}", "my.token=abc"])
    assert shlex.split(line) == ["/venv/bin/runner", "parallelism.shard={fc1: column}", "my.token=[redacted]"]


def test_command_machine_and_checkout_are_those_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "orig_argv", ["runner", "a b"])
    found, _ = provenance_here()
    assert (found.command_line, found.working_directory) == ("runner 'a b'", str(tmp_path))
    assert (found.cores, found.memory_bytes) == (usable_cores(), usable_memory())
    checkouts = [code.folder for code in found.code]
    project = Path(__file__).parents[2]
    assert checkouts == ([str(project)] if (project / ".git").exists() else [])


def test_repositories_of_one_name_have_tags_of_their_own() -> None:
    codes = [CodeState(folder, commit * 40, "", 0, []) for folder, commit in (("/a/own", "1"), ("/b/own", "2"))]
    tags = provenance_tags(Provenance("runner", "/home", 2, 1024, codes))
    assert {name: text[0] for name, text in tags.items() if "code" in name} == {
        "runner.code.a/own": "1",
        "runner.code.b/own": "2",
    }


def test_tags_name_everything() -> None:
    changed = CodeState("/home/project", "a" * 40, "b" * 64, 10, ["new.py"])
    assert provenance_tags(Provenance("runner", "/home", 2, 1024, [changed, CodeState("/x/own", "", "", 0, [])])) == {
        "runner.command_line": "runner",
        "runner.working_directory": "/home",
        "runner.cores": "2",
        "runner.memory_bytes": "1024",
        "runner.code.project": f"{'a' * 40}, changed (SHA-256 {'b' * 64}), untracked: new.py",
        "runner.code.own": "no commit",
    }
