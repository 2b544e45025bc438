"""Runs on worker processes to every kind of end: no checkpoint is lost and no process is left."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.command import QUIET, Command, processes_of, run_command, succeed, summary_of, wait_until

Start = Callable[..., Command]

SHORT = (
    *QUIET,
    "hydra.run.dir=run",
    "train.steps=24",
    "train.eval_every=1000",
    "checkpoint.every_steps=4",
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    succeed(folder, *SHORT, "tracking.pictures=true")
    return folder / "run"


def checkpoint_exists(folder: Path, step: int) -> bool:
    return (folder / "run" / "checkpoints" / f"step-{step}").exists()


def test_a_finished_run_leaves_its_record_and_no_process(uninterrupted: Path) -> None:
    summary = summary_of(uninterrupted)
    assert (summary.status, summary.steps, summary.workers) == ("finished", 24, 2)
    assert summary.kernels == {"cpu": "llvm+numpy+onednn"}
    assert summary.kernels_missing == {}
    assert summary.examples == 24 * 32
    assert 0 < summary.step_time_s["p10"] <= summary.step_time_s["median"] <= summary.step_time_s["p90"]
    assert len(summary.bytes_sent_per_worker) == 2
    assert set(summary.peak_memory_bytes) == {"master", "worker-0", "worker-1"}
    assert processes_of(summary.run_id) == []
    left = {path.name for path in uninterrupted.iterdir()}
    assert {"config.yaml", "run.log", "metrics.jsonl", "plots", "checkpoints", "workers", "graph.dot"} <= left
    assert {path.name for path in (uninterrupted / "plots").iterdir()} == {
        "learning_curves.png",
        "confusion_matrix.png",
    }
    steps = sorted(int(path.name.removeprefix("step-")) for path in (uninterrupted / "checkpoints").iterdir())
    assert steps == [16, 20, 24]


def test_the_same_command_gives_the_same_weights(uninterrupted: Path, tmp_path: Path) -> None:
    run_command(tmp_path, *SHORT)
    assert summary_of(tmp_path / "run").weights_sha256 == summary_of(uninterrupted).weights_sha256


def test_a_killed_worker_ends_the_run_with_its_name_exit_and_log(start: Start, tmp_path: Path) -> None:
    command = start(tmp_path, *SHORT, "train.steps=100000")
    wait_until(lambda: checkpoint_exists(tmp_path, 4), "a first checkpoint")
    command.workers()[1].send_signal(signal.SIGKILL)
    assert command.finish() == 7
    assert "worker-1 (pid " in command.errors
    assert "was killed by SIGKILL" in command.errors
    assert "worker-1.log" in command.errors
    summary = summary_of(tmp_path / "run")
    assert summary.status == "failed"
    assert summary.error is not None
    assert summary.error.class_name == "ClusterError"
    assert processes_of(summary.run_id) == []


def test_a_killed_run_resumes_to_the_weights_of_the_uninterrupted_one(
    start: Start, uninterrupted: Path, tmp_path: Path
) -> None:
    command = start(tmp_path, *SHORT)
    wait_until(lambda: checkpoint_exists(tmp_path, 8), "a checkpoint to resume from")
    workers = command.workers()
    command.send(signal.SIGKILL)
    assert command.finish() == -signal.SIGKILL
    wait_until(lambda: not any(worker.is_running() for worker in workers), "the end of the workers")
    succeed(tmp_path, "resume=run")
    expected, found = summary_of(uninterrupted), summary_of(tmp_path / "run")
    assert found.weights_sha256 == expected.weights_sha256
    assert (found.steps, found.final["test/loss"]) == (24, expected.final["test/loss"])


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_after_a_checkpoint_and_it_resumes(
    start: Start, uninterrupted: Path, tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    command = start(tmp_path, *SHORT)
    wait_until(lambda: checkpoint_exists(tmp_path, 4), "a first checkpoint")
    command.send(signum)
    assert command.finish() == code
    assert "runner resume=" in command.errors
    stopped = summary_of(tmp_path / "run")
    assert stopped.status == "interrupted"
    assert 4 <= stopped.steps < 24
    assert checkpoint_exists(tmp_path, stopped.steps)
    assert processes_of(stopped.run_id) == []
    run_command(tmp_path, "resume=run")
    assert summary_of(tmp_path / "run").weights_sha256 == summary_of(uninterrupted).weights_sha256


def test_two_runs_in_one_directory_are_refused(start: Start, tmp_path: Path) -> None:
    first = start(tmp_path, *SHORT, "train.steps=100000")
    wait_until(lambda: (tmp_path / "run" / "run.json").exists(), "the first run to begin")
    second = run_command(tmp_path, *SHORT)
    assert second.code == 9
    assert "is in use by process" in second.errors
    checkpoints = tmp_path / "run" / "checkpoints"
    wait_until(lambda: any(checkpoints.glob("step-*")), "a checkpoint of the first run")
    first.send(signal.SIGINT)
    assert first.finish() == 130


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_node(tmp_path: Path) -> None:
    command = run_command(tmp_path, *SHORT, "optimizer.lr=1e5", "optimizer.clip_norm=null")
    assert command.code == 5
    assert "lower optimizer.lr" in command.errors
    assert "is the first node that produced any" in command.errors
    assert "replica_" in command.errors


def test_a_model_that_exceeds_the_resource_limits_of_a_process_is_refused(tmp_path: Path) -> None:
    limited = ("bash", "-c", 'ulimit -v 1500000 && exec "$0" -m runner "$@"', sys.executable)
    command = Command(tmp_path, "model=alexnet", "data=synthetic", "tracking=none", executable=limited)
    assert command.finish() == 4
    assert "of memory besides its program, and its resource limits (ulimit -v, ulimit -d) leave " in command.errors
    assert "Traceback" not in command.errors
    assert not list(tmp_path.glob("**/run.json"))


def test_a_dataset_that_was_not_fetched_is_refused_before_anything_starts(tmp_path: Path) -> None:
    command = run_command(tmp_path, *SHORT, "data=mnist", f"data.cache_dir={tmp_path / 'empty'}")
    assert command.code == 3
    assert "runner data fetch mnist" in command.errors
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_worker_that_cannot_read_its_data_ends_the_run_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "cache" / "mnist").mkdir(parents=True)
    command = run_command(tmp_path, *SHORT, "data=mnist", f"data.cache_dir={tmp_path / 'cache'}")
    assert command.code == 3
    assert "worker-" in command.errors
    assert "get it again with: runner data fetch mnist" in command.errors
