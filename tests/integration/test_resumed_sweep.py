"""Sweeps that are killed and resumed, with one job or several jobs at a time."""

import csv
import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from runner.tracking import read_metrics
from tests.integration.command import QUIET, Start, run_command, succeed, summary_of, wait_until
from tests.small_runs import typed

# The tests start dozens of processes, possibly on a busy machine.
pytestmark = pytest.mark.timeout(300)

TINY = (*QUIET, "parallelism=single", "optimizer.clip_norm=null")
IN_SWEEP = "hydra.sweep.dir=sweep"
TWO_AT_ONCE = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


def rows(sweep: Path) -> list[dict[str, str]]:
    with (sweep / "jobs.csv").open() as file:
        return list(csv.DictReader(file))


def finished(sweep: Path) -> list[Path]:
    """Return the paths of the summaries of the finished jobs, sorted by job number."""
    found = sweep.glob("*/summary.json")
    done = (path for path in found if json.loads(path.read_text())["status"] == "finished")
    return sorted(done, key=lambda path: int(path.parent.name))


def starts(run_dir: Path) -> int:
    """Return the number of times that a run was started or resumed."""
    count: int = json.loads((run_dir / "run.json").read_text())["epoch"]
    return count


def steps(run_dir: Path) -> list[int]:
    """Return the steps at which a run logged its training loss, including repeated steps."""
    return [record.step for record in read_metrics(run_dir / "metrics.jsonl") if "train/loss" in record.values]


@pytest.mark.slow
def test_twenty_jobs_of_which_three_fail_survive_a_kill_and_broken_files(start: Start, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    model = tmp_path / "own" / "model" / "mine.yaml"
    model.parent.mkdir(parents=True)
    model.write_text("defaults: ['/schema/model/mlp@_here_']\nhidden: [4]\n")
    rates = [*(f"0.{number:02}" for number in range(1, 18)), "-1", "1e30", "1e32"]
    arguments = ("--config-dir", "own", "-m", *TINY, "model=mine", "train.steps=3", "train.log_every=1")
    killed = start(tmp_path, *arguments, IN_SWEEP, "train.batch_size=8", f"optimizer.lr={','.join(rates)}")
    wait_until(lambda: (sweep / "0" / "run.json").exists(), "a job in flight")
    model.write_text("{broken")
    wait_until(lambda: len(finished(sweep)) >= 5, "five finished jobs")
    killed.send(signal.SIGKILL)
    killed.finish()
    before = {path: path.stat().st_mtime_ns for path in finished(sweep)}
    assert len(before) < 17

    resumed = run_command(tmp_path, "sweep", "resume", "sweep")
    assert resumed.code == 1
    assert "runner: 3 of 20 jobs failed" in resumed.errors
    after = finished(sweep)
    assert [path.parent.name for path in after] == [str(number) for number in range(17)]
    assert {path: path.stat().st_mtime_ns for path in before} == before, "a finished job ran again"
    assert len({summary_of(path.parent).run_id for path in after}) == 17
    assert all(steps(path.parent) == [1, 2, 3] for path in after)
    errors = {row["optimizer_lr"]: row["error"].split(": ")[0] for row in rows(sweep) if row["status"] != "finished"}
    assert errors == {"-1": "ConfigError", "1e+30": "NumericError", "1e+32": "NumericError"}

    again = run_command(tmp_path, "sweep", "resume", "sweep", "--no-retry-failed")
    assert again.code == 1
    assert [starts(path.parent) for path in after if path in before] == [1] * len(before)
    assert again.output == resumed.output


@pytest.mark.slow
def test_a_killed_job_fails_alone_and_resumes_from_its_checkpoint(start: Start, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    arguments = (*TINY, "model=mlp", "model.hidden=[4]", "checkpoint.every_steps=50", IN_SWEEP, *TWO_AT_ONCE)
    running = start(tmp_path, "-m", *arguments, "train.steps=2000,2,3,4")
    wait_until(lambda: bool(list((sweep / "0" / "checkpoints").glob("step-*"))), "a checkpoint of job 0")
    os.kill(int((sweep / "0" / "run.lock").read_text()), signal.SIGKILL)
    assert running.finish() == 1
    assert "job 0 (train.steps=2000): error: the process of the job was killed by SIGKILL" in running.errors
    assert [path.parent.name for path in finished(sweep)] == ["1", "2", "3"]
    assert [starts(path.parent) for path in finished(sweep)] == [1, 1, 1]

    succeed(tmp_path, "sweep", "resume", "sweep", "hydra/launcher=basic")
    assert [starts(sweep / str(number)) for number in range(4)] == [2, 1, 1, 1]
    assert steps(sweep / "0") == [1, *range(10, 2001, 10)]


def test_jobs_end_with_a_killed_sweep_and_continue(start: Start, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    arguments = (*TINY, "model=mlp", "model.hidden=[4]", IN_SWEEP, *TWO_AT_ONCE)
    killed = start(tmp_path, "-m", *arguments, "train.steps=2000,2001,3")
    wait_until(lambda: all((sweep / job / "config.yaml").exists() for job in "01"), "two jobs in flight")
    processes = psutil.Process(killed.pid).children(recursive=True)
    killed.send(signal.SIGKILL)
    killed.wait()
    _, left = psutil.wait_procs(processes, timeout=60)
    assert left == []
    succeed(tmp_path, "sweep", "resume", "sweep", "hydra/launcher=basic")
    assert [starts(sweep / str(number)) for number in range(3)] == [2, 2, 1]
    assert {row["status"] for row in rows(sweep)} == {"finished"}
    killed.finish()


def test_parallel_jobs_share_the_cores(tmp_path: Path) -> None:
    arguments = (
        *typed("tracking=none tracking.pictures=false parallelism=single model=mlp model.hidden=[4] train.steps=1"),
        IN_SWEEP,
    )
    at_once = f"hydra.launcher.n_jobs={len(os.sched_getaffinity(0))}"
    sweep = succeed(tmp_path, "-m", *arguments, "seed=1,2", "hydra/launcher=joblib", at_once)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    stored = [(tmp_path / "sweep" / job / "config.yaml").read_text() for job in "01"]
    assert all(f"threads_per_worker: {share}\n" in text for text in stored)
    header, _, cells, *_ = sweep.output.splitlines()
    assert header.split()[:2] == ["n", "test_accuracy"]
    assert cells.split()[0] == "2", "repetitions"


@pytest.mark.parametrize("debug", [pytest.param((), marks=pytest.mark.slow), ("--debug",)])
def test_a_job_in_a_separate_process_shows_its_traceback_on_request(tmp_path: Path, debug: tuple[str, ...]) -> None:
    """The job has a valid configuration, but the checkpoint for its initial weights does not exist."""
    arguments = (
        "-m",
        *typed("tracking=none tracking.pictures=false init_from=absent train.steps=1,2"),
        IN_SWEEP,
        *TWO_AT_ONCE,
        *debug,
    )
    assert run_command(tmp_path, *arguments).code == 1
    for job in "01":
        assert ("Traceback" in (tmp_path / "sweep" / job / "job.log").read_text()) == bool(debug)
