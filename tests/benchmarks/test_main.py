"""The command: what it prints, writes and returns."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import __main__ as command
from benchmarks import installing, tables
from benchmarks.environments import ROOT
from benchmarks.options import Options
from benchmarks.process import SubjectError
from benchmarks.report import Report
from runner.errors import ConfigError
from tests.benchmarks.made import case, subject


def measured(name: str, options: Options, report: Report) -> None:
    """Stands in for a measurement: AlexNet succeeds, the others fail."""
    if name == "alexnet":
        report.comparisons.append(case(subject("runner", [12]), case=name))
    elif name == "mlp":
        raise ConfigError("model.hidden: no such key")
    else:
        raise SubjectError("no answer within 1800 s")


@pytest.fixture
def _faked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_measure", measured)


@pytest.mark.usefixtures("_faked")
def test_tables_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["alexnet", "--output", str(tmp_path / "table.md"), "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert "| alexnet | float32 | 12 |" in printed
    assert "1 threads used" in printed
    assert printed == (tmp_path / "table.md").read_text() + "\n"


@pytest.mark.usefixtures("_faked")
def test_one_case_that_fails_does_not_keep_the_others_from_being_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["mlp", "lenet_b1", "alexnet"]) == 1
    printed = capsys.readouterr().out
    assert "- mlp: model.hidden: no such key" in printed
    assert "- lenet_b1: no answer within 1800 s" in printed
    assert "| alexnet | float32 | 12 |" in printed


BUSY = """
import runpy, sys
from pathlib import Path
from benchmarks import tables
from benchmarks.process import SubjectProcess
from benchmarks.subjects import SubjectSpec

LOG = Path(sys.argv.pop())

def measure(name, options, report):
    spec = SubjectSpec("fake", "", "tests.benchmarks.fake_subject", ("sleeps",))
    with SubjectProcess(spec, threads=1, log=LOG) as process:
        process.ask("load")
        process.send("run", phase="step", times=1)
        print("busy", flush=True)
        process.receive()

tables._measure = measure
runpy.run_module("benchmarks", run_name="__main__")
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_subjects_and_their_processes(signum: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUSY, "mlp", str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as benchmarks:
        assert benchmarks.stdout is not None
        assert benchmarks.stdout.readline() == "busy\n"
        subjects = psutil.Process(benchmarks.pid).children(recursive=True)
        assert len(subjects) == 2
        benchmarks.send_signal(signum)
        assert benchmarks.wait() == 128 + signum
    _, left = psutil.wait_procs(subjects, timeout=30)
    for process in left:
        process.kill()
    assert left == []


def test_peers_are_installed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(installing, "install", asked.append)
    assert command.main(["peers", "jax"]) == 0
    assert asked == [("jax",)]
