"""``runner --supervise``: a killed master is started again; other ends, and requests to stop, end the run."""

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from runner.cli import main
from runner.commands.supervise import _Watch
from runner.errors import ClusterError
from runner.training.restart_budget import RestartBudget
from tests.integration.command import QUIET, Command, processes_of, summary_of, wait_until
from tests.refusal import Capture


def program(statement: str) -> Sequence[str]:
    return (sys.executable, "-ISc", f"import os; open('starts', 'a').write('x'); {statement}")


@pytest.mark.parametrize(
    ("statement", "code", "starts", "error"),
    [
        ("", 0, 1, ""),
        ("os._exit(4)", 4, 1, ""),
        ("os._exit(7)", 7, 1, ""),
        ("os._exit(130)", 130, 1, ""),
        ("os.kill(os.getpid(), 15)", 143, 1, ""),
        ("os.kill(os.getppid(), 15); import time; time.sleep(60)", 143, 1, ""),
        ("os.kill(os.getppid(), 2); os.kill(os.getpid(), 9)", 130, 1, ""),
        ("os.path.getsize('starts') < 2 and os.kill(os.getpid(), 9)", 0, 2, ""),
        ("1 / 0", None, 2, "master exited with code 1 a second time in step 0, so the run is not restarted"),
        ("os.kill(os.getpid(), 11)", None, 2, "killed by SIGSEGV a second time in step 0"),
        ("os.kill(os.getpid(), 9)", None, 4, "already restarted 3 times.*runner resume="),
    ],
)
def test_a_master_is_started_again_unless_its_end_was_deliberate(
    statement: str, code: int | None, starts: int, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    handlers = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    watch = _Watch(tmp_path / "run", program(statement), (), RestartBudget(3, tmp_path / "run"))
    if error:
        with pytest.raises(ClusterError, match=f"(?s){error}"):
            watch.run()
    else:
        assert watch.run() == code
    assert len((tmp_path / "starts").read_text()) == starts
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_a_directory_that_holds_a_run_is_not_continued_with_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run.json", "config.yaml"):
        (tmp_path / name).touch()
    begin, resume = (program(f"os._exit({code})") for code in (9, 0))
    assert _Watch(tmp_path, begin, resume, RestartBudget(3, tmp_path)).run() == 9


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--supervise", "doctor"], "--supervise watches a training run; leave it out of `runner doctor`"),
        (["-m", "--supervise", "seed=1,2"], "--supervise watches one run; leave it out of a sweep"),
        (["optimizer.lr=abc", "--supervise"], "optimizer.lr"),
    ],
)
def test_other_commands_are_refused(
    arguments: list[str], expected: str, capsys: Capture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.commands.supervise._Watch", None)
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.slow
def test_a_watched_run_continues_from_its_checkpoint_and_stops_with_its_watch(tmp_path: Path) -> None:
    """First the master is killed; then the watching process is killed, which stops the run after a checkpoint."""
    length = ("train.steps=4000", "train.log_every=1", "checkpoint.every_steps=100", "model=mlp", *QUIET)
    command = Command(tmp_path, *length, "hydra.run.dir=run", "--supervise")
    run_dir = tmp_path / "run"
    wait_until((run_dir / "checkpoints" / "step-100").exists)
    (master,) = psutil.Process(command.pid).children()
    master.kill()
    wait_until((run_dir / "recoveries.jsonl").exists)
    wait_until((run_dir / "checkpoints" / "step-400").exists)
    (master,) = psutil.Process(command.pid).children()
    command.send(signal.SIGKILL)
    master.wait(20)
    command.finish()
    summary = summary_of(run_dir)
    assert (summary.status, summary.recoveries) == ("interrupted", 1)
    assert summary.error is not None
    assert "continue with: runner resume=" in summary.error.message
    assert (run_dir / "checkpoints" / f"step-{summary.steps}").exists()
    assert processes_of(summary.run_id) == []
    (lost,) = map(json.loads, (run_dir / "recoveries.jsonl").read_text().splitlines())
    assert (lost["worker"], lost["cause"], lost["epoch"]) == ("master", "was killed by SIGKILL", 2)
    assert lost["step"] >= lost["continued_from"] >= 100
    assert "the master was killed by SIGKILL" in (run_dir / "run.log").read_text()
