"""Tables whose process is killed, and two processes that run one table concurrently."""

import os
import signal
import subprocess
import time
from pathlib import Path

from runner.commands.table_files import TableReader, current
from runner.engine.cluster.processes import runner_command
from runner.records.run_directory import run_and_starts
from runner.tables.results import folder_of
from tests.refusal import Capture
from tests.tables.own_table import TABLE, changed, command, run, trained

LONG = ["train.steps=400", "train.eval_every=100", "checkpoint.every_steps=50"]


def started(path: Path) -> subprocess.Popen[bytes]:
    """Start ``runner table run`` in a separate process group."""
    words = [*runner_command(), *command(path, "run")]
    return subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(path: Path, pattern: str, count: int) -> None:
    """Wait until a folder has this number of files, for at most a minute."""
    deadline = time.monotonic() + 60
    while len(list(path.glob(pattern))) < count:
        assert time.monotonic() < deadline, f"no {pattern} in {path}"
        time.sleep(0.01)


def outcomes(path: Path) -> dict[tuple[str, int | None], tuple[object, ...]]:
    """Return (run, seed) -> the facts that do not depend on time, for each result of a table."""
    found = {}
    for name, results in current(TableReader().read(path)).results.items():
        for seed, result in results.current.items():
            difference, origin = result.values.get("weight_difference"), result.origin
            found[name, seed] = (result.evaluations, difference, origin.weights_sha256, origin.first_steps)
    return found


def test_a_killed_table_continues_without_running_anything_twice(own: Path, tmp_path: Path, capsys: Capture) -> None:
    changed(own, base=[*TABLE["base"], *LONG])
    process = started(own)
    wait_for(folder_of(own), "*/*.json", 2)
    wait_for(Path("multirun/table/mine"), "parts/*/checkpoints/step-*", 1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = {file: file.read_bytes() for file in folder_of(own).glob("*/*.json")}
    assert run(own) == 0
    assert all(file.read_bytes() == text for file, text in finished.items())
    directories = [Path("multirun/table/mine", file.parent.name, file.stem) for file in finished]
    assert [run_and_starts(directory)[1] for directory in directories] == [1] * len(finished), "none is resumed"
    found = outcomes(own)
    capsys.readouterr()
    (tmp_path / "other").mkdir()
    os.chdir(tmp_path / "other")
    for file in folder_of(own).glob("*/*.json"):
        file.unlink()
    assert run(own) == 0
    assert trained(capsys) == 4
    assert outcomes(own) == found


def test_a_second_process_runs_nothing_while_the_first_one_runs(own: Path, capsys: Capture) -> None:
    changed(own, base=[*TABLE["base"], *LONG])
    process = started(own)
    wait_for(folder_of(own), "*/*.json", 1)
    assert run(own) != 0
    captured = capsys.readouterr()
    assert "jobs ended" not in captured.err
    assert "another process computes the results in" in captured.err
    assert process.wait(60) == 0
    assert run(own) == 0
    assert trained(capsys) == 0
    assert all(run_and_starts(path)[1] == 1 for path in Path("multirun/table/mine").glob("*/seed-*"))
