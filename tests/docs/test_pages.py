"""Every command of the documentation runs, page by page, in a separate folder for each page."""

import shlex
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks
from tests.integration.command import succeed

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = "bash"
WITHOUT_COMMANDS = {"contributing", "engine", "guarantees", "measurements", "run-record"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    tried = 0
    for block in blocks(page):
        if block.kind == "file":
            path = tmp_path / block.said
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.kind == "run" and block.language == COMMANDS:
            for command in block.commands:
                program, *arguments = shlex.split(command, comments=True)
                assert program == "runner", command
                succeed(tmp_path, *arguments)
                if (tmp_path / "outputs").exists():
                    # Run directories are named by the second, and the next run may start in the same one.
                    (tmp_path / "outputs").rename(tmp_path / f"outputs-{tried}")
                tried += 1
        else:
            assert block.kind == "not run", f"{page.name}: a block of {block.language!r} is no command and no file"
            assert block.said, f"{page.name}: a block that is not run needs a reason"
    assert bool(tried) == (page.stem not in WITHOUT_COMMANDS)


def test_a_key_that_begins_like_a_verb_trains() -> None:
    lines = Block("bash", "runner data.val_fraction=0.1  # early\nrunner data list\n", "run", "train.steps=2").commands
    assert lines == ["runner data.val_fraction=0.1 train.steps=2  # early", "runner data list"]
