"""Documented commands work, the nodes and files that the documentation names exist, and its pages build.

An HTML comment on the line before a fenced block says how the block is tested:

    <!-- run: KEY=VALUE ... -->   the overrides are added to each `runner` command of the block that trains
    <!-- not run: REASON -->
    <!-- file: PATH -->           the block is a file in the folder of the page, not commands
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import runner
from runner.config import hydra_app
from runner.config.configuration import fix_machine_values
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.run.kernel_table import kernels_for
from runner.training.build import build
from tests.docs import reference
from tests.integration.command import succeed

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITHOUT_COMMANDS = {"layers-and-ops", "contributing", "engine", "guarantees", "measurements", "run-record"}
BLOCK = re.compile(r"(?:<!-- (?P<said>[^>]*?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
KINDS = ("run", "not run", "file")
VERBS = re.compile(
    r"runner (--plugin \S+ )?"
    r"(explain|simulate|data|ui|doctor|list|new|rerun|compare|eval|adapt|predict|sweep|sync|table)(?!\S)"
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page. kind: one of KINDS. said: the text after the kind in the block's comment."""

    language: str
    text: str
    kind: str
    said: str

    @property
    def commands(self) -> list[str]:
        """Return the commands, one per line; the overrides of the comment are added to the commands that train."""
        given = " ".join(map(shlex.quote, self.said.split()))
        return [_limited(line, given) for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]


def _limited(line: str, given: str) -> str:
    command, hash_sign, comment = line.partition("  #")
    trains = command.startswith("runner ") and not VERBS.match(command)
    return f"{command.rstrip()} {given}{hash_sign}{comment}" if given and trains else line


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in order. Raises ValueError for a comment of an unknown kind."""
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        kind, _, said = (found["said"] or "run:").partition(":")
        if kind not in KINDS:
            raise ValueError(f"{page}: comment {found['said']!r} before a block; expected one of {', '.join(KINDS)}")
        yield Block(found["language"], found["text"], kind, said.strip())


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    tried = 0
    script = "".join(block.text for block in blocks(page) if (block.kind, block.language) == ("run", "python"))
    if script:
        pytest.importorskip("onnx", reason="onnx is not installed: the extra onnx")
        (tmp_path / "script.py").write_text(script, encoding="utf-8")
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=environment, check=True)
        tried += 1
    for block in blocks(page):
        if block.kind == "file":
            path = tmp_path / block.said
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.kind == "run" and block.language == "bash":
            for command in block.commands:
                program, *arguments = shlex.split(command, comments=True)
                assert program == "runner", command
                succeed(tmp_path, *arguments)
                if (tmp_path / "outputs").exists():
                    # A run directory is named after its start time in seconds, so two runs could get the same name.
                    (tmp_path / "outputs").rename(tmp_path / f"outputs-{tried}")
                tried += 1
        elif (block.kind, block.language) != ("run", "python"):
            assert block.kind == "not run", f"{page.name}: a block of {block.language!r} is not a command or file"
            assert block.said, f"{page.name}: a block that is not run needs a reason"
    assert bool(tried) == (page.stem not in WITHOUT_COMMANDS)


def test_a_command_whose_first_key_begins_like_a_verb_trains() -> None:
    lines = Block("bash", "runner data.val_fraction=0.1  # early\nrunner data list\n", "run", "train.steps=2").commands
    assert lines == ["runner data.val_fraction=0.1 train.steps=2  # early", "runner data list"]


def test_the_page_about_python_lists_every_public_name() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8").partition("## Public names")[2]
    assert sorted(re.findall(r"`runner\.(\w+)`", page)) == sorted(runner.__all__)


ENGINE_PAGE = (ROOT / "docs/engine.md").read_text(encoding="utf-8")
NODES = re.compile(r"(?<![\w/])((?:replica_\d|reduce|send|recv)/[\w/.]+)")
FILES = re.compile(r"`((?:\.\./|\w+/)+\w+\.py)`")


def test_every_node_on_the_page_about_the_engine_is_in_the_graph_or_in_a_plan() -> None:
    experiment = build(fix_machine_values(hydra_app.compose([]).config(), 2))
    program = experiment.program
    plans = ProgramPlans(program, experiment.cluster, kernels_for(experiment.cluster.devices))
    planned = plans.plans(program.clients["train"].signature).values()
    known = {node.name for node in program.graph} | {each.node for plan in planned for each in plan.instructions}
    named = set(NODES.findall(ENGINE_PAGE))
    assert len(named) > 10
    assert named - known == set()


@pytest.mark.parametrize("page", ["docs/engine.md", "PAPERS.md"])
def test_every_file_on_a_page_about_the_code_exists(page: str) -> None:
    below = [ROOT / "runner/engine", ROOT / "runner", ROOT / "runner/engine/compile"]
    named = set(FILES.findall((ROOT / page).read_text(encoding="utf-8")))
    assert len(named) > 10
    assert {name for name in named if not any((folder / name).exists() for folder in below)} == set()


LOADED = re.compile(r"""(?:<script[^>]*\bsrc|<link[^>]*\bhref|<img[^>]*\bsrc)=["']?(https?:)?//""")


@pytest.mark.slow
def test_every_page_is_built_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert {page.parent.name for page in tmp_path.glob("*/index.html")} >= pages
    assert (tmp_path / "index.html").is_file()
    assert LOADED.search("<script async src='https://example.org/a.js'>")
    found = {page: LOADED.findall(page.read_text(encoding="utf-8")) for page in tmp_path.rglob("*.html")}
    assert {page: hosts for page, hosts in found.items() if hosts} == {}


def test_every_layer_and_op_is_listed() -> None:
    renew = "renew the page with `python -m tests.docs.reference`"
    assert reference.PAGE.read_text() == reference.page(), renew
