"""The commands of ``examples/*/README.md``, as they stand there, with fewer steps."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.strategies import STRATEGIES
from tests.integration.command import succeed, summary_of
from tests.plugin_tables import EXAMPLES

FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))
FEW_STEPS = ("train.steps=2", "tracking=none", "tracking.pictures=false", "cluster.threads_per_worker=1")


def command_lines(folder: str) -> list[list[str]]:
    """Every command of a README, in order."""
    text = (EXAMPLES / folder / "README.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_every_example_has_its_yaml_and_a_line_in_the_overview() -> None:
    overview = (EXAMPLES / "README.md").read_text()
    assert len(FOLDERS) == 7
    assert not {"local_sgd", "diloco"} & set(STRATEGIES), "examples are not in the tables of the package"
    for folder in FOLDERS:
        assert f"[{folder}]({folder})" in overview
        assert list((EXAMPLES / folder / "conf").glob("*/*.yaml"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_commands_run(folder: str, tmp_path: Path) -> None:
    place = shutil.copytree(EXAMPLES / folder, tmp_path / folder)
    lines = command_lines(folder)
    trained = [line for line in lines if "train.steps=200" in line]
    assert trained, "each shows a run"
    for number, (program, *arguments) in enumerate(lines):
        if program == "python":
            subprocess.run([sys.executable, *arguments], cwd=place, check=True)
            continue
        assert program == "runner"
        if [program, *arguments] not in trained:
            assert arguments[0] == "explain"
            succeed(place, *arguments)
            continue
        runs = f"runs/{number}"
        directories = (f"hydra.run.dir={runs}", f"hydra.sweep.dir={runs}")
        succeed(place, *arguments, *FEW_STEPS, *directories)
        summaries = [summary_of(path.parent) for path in (place / runs).rglob("summary.json")]
        assert summaries
        for summary in summaries:
            assert (summary.status, summary.steps) == ("finished", 2)
            plugins = [Path(reference).name for reference in summary.plugins]
            assert plugins == [name for name in arguments if name.endswith(".py")]
