"""Every command of the documentation is typed, page by page, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = "bash"
REFERENCES = {"contributing", "engine", "guarantees", "measurements", "run-record"}  # pages without a command to type
LIMIT_S = 120


def environment() -> dict[str, str]:
    """As of a shell in which the project's environment is active."""
    programs = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def typed(block: Block, folder: Path) -> None:
    """Type the commands of a block, one after the other."""
    for command in block.commands:
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert ended.returncode == 0, f"$ {command}\n{ended.stdout}{ended.stderr}"


@pytest.mark.timeout(10 * LIMIT_S)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_says_can_be_typed(page: Path, tmp_path: Path) -> None:
    tried = 0
    for block in blocks(page):
        if block.kind == "file":
            path = tmp_path / block.said
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.kind == "run" and block.language == COMMANDS:
            typed(block, tmp_path)
            tried += 1
        else:
            assert block.kind == "not run", f"{page.name}: a block of {block.language!r} is no command and no file"
            assert block.said, f"{page.name}: a block that is not run says why"
    assert bool(tried) == (page.stem not in REFERENCES)


def test_a_key_that_begins_like_a_verb_trains() -> None:
    lines = Block("bash", "runner data.val_fraction=0.1  # early\nrunner data list\n", "run", "train.steps=2").commands
    assert lines == ["runner data.val_fraction=0.1 train.steps=2  # early", "runner data list"]
