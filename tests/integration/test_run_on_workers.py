"""Runs on worker processes: after any end of a run, no checkpoint is lost and no process is left."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from runner.data import ImageFolder
from runner.data.convert import convert
from runner.data.records.example import encode
from runner.data.records.shards import shard_name
from runner.kernels.cpu.onednn.library import SETTING
from runner.records.decisions import read_decisions
from runner.records.summary import Summary
from runner.system.record_framing import framed
from tests.data.own_data import write_images
from tests.integration.command import QUIET, Command, Start, processes_of, run_command, succeed, summary_of, wait_until
from tests.small_runs import typed

SHORT = (*QUIET, "hydra.run.dir=run", "train.steps=24", "train.eval_every=1000", "checkpoint.every_steps=4")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of an uninterrupted run."""
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
    assert "slower kernels are used" not in (uninterrupted / "run.log").read_text()
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worker", "overrides"),
    [("worker-1", ()), ("worker-2", ("parallelism.combine=parameter_server", "parallelism.backup_workers=1"))],
    ids=["worker", "backup worker"],
)
def test_if_a_worker_is_killed_the_run_fails_and_names_worker_signal_and_log(
    worker: str, overrides: tuple[str, ...], start: Start, tmp_path: Path
) -> None:
    command = start(tmp_path, *SHORT, *overrides, "train.steps=100000", "train.restarts=0")
    wait_until(lambda: checkpoint_exists(tmp_path, 4), "a first checkpoint")
    command.workers()[int(worker[-1])].send_signal(signal.SIGKILL)
    assert command.finish() == 7
    assert f"{worker} (pid " in command.errors
    assert "was killed by SIGKILL" in command.errors
    assert f"{worker}.log" in command.errors
    summary = summary_of(tmp_path / "run")
    assert summary.status == "failed"
    assert summary.error is not None
    assert summary.error.class_name == "WorkerLostError"
    assert processes_of(summary.run_id) == []
    record = tmp_path / "run" / "contributors.jsonl"
    assert (record.exists() and len(read_decisions(record)) >= 4) == bool(overrides)


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


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_run_saves_a_checkpoint_when_a_signal_ends_it_and_can_be_resumed(
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


@pytest.mark.parametrize(
    ("overrides", "code", "complaints"),
    [
        (
            "optimizer.lr=1e5 optimizer.clip_norm=null",
            5,
            ["lower optimizer.lr", "no earlier node produced such values", "replica_"],
        ),
        ("data=mnist data.cache_dir={folder}/absent", 3, ["runner data fetch mnist"]),
        ("data=mnist data.cache_dir={folder}/cache", 3, ["worker-", "get it again with: runner data fetch mnist"]),
    ],
    ids=["loss that is not finite", "data that were not fetched", "data that a worker cannot read"],
)
def test_a_run_that_fails_reports_the_reason(overrides: str, code: int, complaints: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache" / "mnist").mkdir(parents=True)
    command = run_command(tmp_path, *SHORT, *typed(overrides.format(folder=tmp_path)))
    assert command.code == code
    assert [complaint for complaint in complaints if complaint not in command.errors] == []
    assert (tmp_path / "run" / "run.json").exists() == ("absent" not in overrides), "a run without data does not start"


def test_a_model_that_exceeds_the_resource_limits_of_a_process_is_refused(tmp_path: Path) -> None:
    limited = ("bash", "-c", 'ulimit -v 1500000 && exec "$0" -m runner "$@"', sys.executable)
    command = Command(tmp_path, "model=alexnet", "data=synthetic", "tracking=none", executable=limited)
    assert command.finish() == 4
    assert "of memory besides its program, and its resource limits (ulimit -v, ulimit -d) leave " in command.errors
    assert "Traceback" not in command.errors
    assert not list(tmp_path.glob("**/run.json"))


SMALL = (
    *QUIET,
    *typed("model=lenet data=digits parallelism=single hydra.run.dir=run train.steps=2 train.eval_every=1000"),
)


@dataclass(frozen=True)
class LibraryRun:
    """The results of a run: its summary, its log and the loss of its first step."""

    summary: Summary
    log: str
    first_loss: float


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LibraryRun]:
    """Return three runs, trained at the same time: with all libraries, without oneDNN, and without llvmlite."""
    broken = tmp_path_factory.mktemp("broken")
    (broken / "llvmlite.py").write_text("raise ImportError('not for this CPU')\n", encoding="utf-8")
    search_path = os.pathsep.join(filter(None, [str(broken), os.environ.get("PYTHONPATH")]))
    environments = {"all": {}, "no onednn": {SETTING: "/missing"}, "no llvm": {"PYTHONPATH": search_path}}
    folders = {name: tmp_path_factory.mktemp("run") for name in environments}
    commands = [Command(folders[name], *SMALL, environment=each) for name, each in environments.items()]
    codes = [command.finish() for command in commands]
    assert codes == [0] * len(commands), [command.errors for command in commands]
    return {name: _library_run(folder / "run") for name, folder in folders.items()}


def _library_run(run: Path) -> LibraryRun:
    first, *_ = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert first["step"] == 1
    return LibraryRun(summary_of(run), (run / "run.log").read_text(encoding="utf-8"), first["values"]["train/loss"])


@pytest.mark.parametrize(
    ("missing", "left", "expected"),
    [
        (
            "onednn",
            "llvm",
            r"libdnnl\.so\.3 could not be loaded; tried /missing: .*; "
            "set RUNNER_LIBDNNL to another file, or unset it",
        ),
        ("llvm", "onednn", r"llvmlite cannot be loaded \(not for this CPU\); pip install llvmlite"),
    ],
)
def test_without_a_library_of_fast_kernels_the_others_compute(
    runs: dict[str, LibraryRun], missing: str, left: str, expected: str
) -> None:
    run = runs[f"no {missing}"]
    assert set(run.summary.kernels["cpu"].split("+")) == {left, "numpy"}
    ((name, reason),) = run.summary.kernels_missing.items()
    assert name == missing
    assert re.fullmatch(expected, reason)
    assert (
        f"WARNING runner.training.run: kernels of {missing} are missing, so slower kernels are used: {reason}\n"
        in run.log
    )
    assert f"INFO runner.training.run: kernels of {left} " in run.log
    assert run.first_loss == pytest.approx(runs["all"].first_loss, rel=1e-5)


PROJECT = Path(__file__).parents[2]
CHECKING = "libc_malloc_debug.so.0"
"""A library of glibc; in a process that preloads it, ``free`` checks the bytes around the freed memory."""

TRAIN = """
import sys
from pathlib import Path

from runner.engine.run.session import scalar
from runner.records.run_directory import RunDirectory
from runner.training.build import build, open_session
from tests.small_runs import small_config

for threads in sys.argv[1:]:
    experiment = build(small_config(f"cluster.threads_per_worker={threads}"))
    with (
        RunDirectory.open(Path(threads), resume=False) as directory,
        open_session(experiment, directory, check_finite=False) as session,
    ):
        session.run("init")
        for step in range(4):
            feeds = {"step": scalar(step, "int64"), "learning_rate": scalar(0.1, "float32")}
            loss = session.run("train", step=step, feeds=feeds)["loss"]
    print(threads, f"{loss:.4f}")
"""


@pytest.fixture
def watching() -> dict[str, str]:
    """Return variables with which a process aborts if it wrote past its memory; skip the test without CHECKING."""
    found = subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({CHECKING!r})"], capture_output=True)
    if found.returncode != 0:
        pytest.skip(f"{CHECKING}, which detects writes past the end of memory, is not on this machine")
    return {"LD_PRELOAD": CHECKING, "MALLOC_CHECK_": "3"}


@pytest.mark.slow
def test_a_process_with_more_threads_than_before_stays_within_its_memory(
    tmp_path: Path, watching: dict[str, str]
) -> None:
    """A oneDNN primitive needs workspace for each thread, so the workspace of one run is too small for the next run.

    The losses equal those of one thread, so no trained value was overwritten either.
    """
    python_path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    environment = {**watching, "PYTHONPATH": python_path}
    command = Command(tmp_path, "-c", TRAIN, "1", "2", "4", executable=(sys.executable,), environment=environment)
    assert command.finish() == 0, command.errors
    threads, losses = zip(*(line.split() for line in command.output.splitlines()), strict=True)
    assert threads == ("1", "2", "4")
    assert len(set(losses)) == 1


def test_an_image_that_a_worker_cannot_decode_is_named_with_file_offset_and_record(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", side=8)
    convert(ImageFolder(path=str(images)), tmp_path / "records", (1, 1), report=lambda line: None)
    shard = tmp_path / "records" / shard_name("train", 0, 1)
    no_image = encode({"image/encoded": [b"?"], "image/class/label": np.array([1])})
    shard.write_bytes(shard.read_bytes() + framed(no_image))
    chosen = typed(
        "data=tfrecord data.path=records data.cache_dir=cache data.size=8 data.mean=[0,0,0] data.std=[1,1,1]"
    )
    command = run_command(tmp_path, *SHORT, *chosen, "train.batch_size=5")
    assert command.code == 3
    assert re.search(r"worker-\d: \S+train-00000-of-00001: record 4 at offset \d+ cannot be decoded", command.errors)
