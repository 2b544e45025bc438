"""Functions that make sweeps, copy them, and read the table of their jobs."""

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.cli import main
from tests.fake_training import Call, FakeTraining


def rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows of jobs.csv, each as a dict from column to text."""
    with (folder / "sweep" / "jobs.csv").open() as file:
        return list(csv.DictReader(file))


def statuses(folder: Path) -> list[str]:
    """Return the status of every row, without its error."""
    return [row["status"].split(":")[0] for row in rows(folder)]


def run_in(folder: Path, arguments: list[str], act: Callable[[Call], None]) -> int:
    """Run a command in a folder with a fake that replaces training; return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("runner.training.run.run", FakeTraining(act).run)
        return main(arguments)


def copied(source: Path, folder: Path) -> None:
    """Copy the folder of a sweep with the times of its files, which then name the new folder."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    for path in filter(Path.is_file, folder.rglob("*")):
        status, text = path.stat(), path.read_text()
        path.write_text(text.replace(str(source), str(folder)))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
