"""The verb ``new``: its templates run unchanged, and no file is overwritten."""

import shlex
from pathlib import Path

import pytest

from runner.cli import main
from runner.commands.new import KINDS
from runner.engine.run.kernel_table import load_kernels
from tests.integration.command import summary_of
from tests.plugin_tables import restored_tables
from tests.refusal import Capture, refused

FEW_STEPS = (
    "train.steps=2",
    "tracking=none",
    "tracking.pictures=false",
    "cluster.threads_per_worker=1",
    "hydra.run.dir=run",
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_runs_with_the_printed_command(kind: str, folder: Path, capsys: Capture) -> None:
    assert main(["new", kind, "my_own"]) == 0
    *wrote, run = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("wrote ") for line in wrote] == sorted(map(str, written(folder)), key=len)
    command = shlex.split(run.removeprefix("run it: "))
    assert command[0] == "runner"
    one_process = () if kind == "strategy" else ("parallelism=single",)
    load_kernels()
    with restored_tables():
        assert main([*command[1:], *FEW_STEPS, *one_process]) == 0
    summary = summary_of(folder / "run")
    assert (summary.status, summary.steps) == ("finished", 2)
    assert list(summary.plugins) == [str(folder / "my_own.py")]


def written(folder: Path) -> list[Path]:
    return [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("taken", ["my_own.py", "conf/model/my_own.yaml"])
def test_nothing_is_overwritten(taken: str, folder: Path, capsys: Capture) -> None:
    path = folder / taken
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    message = refused(["new", "model", "my_own"], capsys)
    assert f"{taken} exists; choose another name, or move the file" in message
    assert path.read_text() == "mine"
    assert written(folder) == [Path(taken)]


@pytest.mark.parametrize(
    ("kind", "name", "complaint"),
    [
        ("model", "MyNet", "name 'MyNet': expected small letters, digits and underscores"),
        ("model", "../net", "name '../net': expected small letters"),
        ("op", "lambda", "name 'lambda': expected small letters"),
        ("model", "lenet", "name 'lenet': runner has a model of this name; choose another, such as my_lenet"),
        ("op", "relu", "name 'relu': runner has a op of this name"),
    ],
)
def test_impossible_names_are_refused(kind: str, name: str, complaint: str, folder: Path, capsys: Capture) -> None:
    assert complaint in refused(["new", kind, name], capsys)
    assert written(folder) == []


def test_a_folder_that_cannot_be_written_is_named(folder: Path, capsys: Capture) -> None:
    Path("conf").write_text("no folder")
    assert "cannot write conf" in refused(["new", "model", "my_own"], capsys, code=4)
