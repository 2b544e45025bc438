"""The benchmark command: its options, its output, and its documents about backup workers and tracking."""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from benchmarks import __main__ as command
from benchmarks import backup, environments, tables, tracking
from benchmarks.__main__ import VERBS, main
from benchmarks.backup import SUBJECTS, Subject
from benchmarks.environments import ROOT
from benchmarks.experiments import configuration
from benchmarks.options import HIDDEN, NAMES, Options, parse
from benchmarks.process import SubjectError
from benchmarks.report import Report
from benchmarks.subjects import PEERS
from benchmarks.tracking import TRAINING, Result, Window, _read
from runner.errors import ConfigError
from tests.benchmarks.made import case, subject


def measured(name: str, options: Options, report: Report) -> None:
    """Stand in for the measurement of a case: AlexNet succeeds, and all other cases fail."""
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
def test_the_other_cases_are_measured_if_one_fails(capsys: pytest.CaptureFixture[str]) -> None:
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
@pytest.mark.slow
def test_a_signal_ends_the_subjects_and_their_processes(signum: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUSY, "mlp", str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as benchmarks:
        assert benchmarks.stdout.readline() == "busy\n"
        subjects = psutil.Process(benchmarks.pid).children(recursive=True)
        assert len(subjects) == 2
        benchmarks.send_signal(signum)
        assert benchmarks.wait() == 128 + signum
    _, left = psutil.wait_procs(subjects, timeout=30)
    for process in left:
        process.kill()
    assert left == []


def test_all_peers_or_the_named_ones_are_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(environments, "install", asked.append)
    assert command.main(["peers"]) == command.main(["peers", "jax"]) == 0
    assert asked == [("torch", "jax", "mpi", "tensorflow", "images"), ("jax",)]
    with pytest.raises(SystemExit):
        command.main(["peers", "caffe"])
    assert "NAME 'caffe': expected some of torch, jax, mpi, tensorflow" in capsys.readouterr().err


def test_without_arguments_all_cases_are_measured_except_hidden_ones() -> None:
    options = parse([])
    assert options.cases == tuple(name for name in NAMES if name not in HIDDEN)
    assert options.peers == PEERS
    assert (options.settings.rounds, options.settings.turn, options.precisions) == (5, None, None)


def test_a_word_selects_the_names_that_begin_with_it() -> None:
    options = parse(["lenet", "scaling", "--subjects", "torch-e,jax", "--precision", "bfloat16", "--phases", "step"])
    scaling = ("scaling/mlp", "scaling/lenet", "scaling/resnet20", "scaling/cifar_convnet")
    assert options.cases == ("lenet", "lenet_b1", *scaling)
    assert [peer.name for peer in options.peers] == ["torch-eager", "jax-nchw", "jax-nhwc"]
    assert (options.precisions, options.settings.phases) == (("bfloat16",), ("step",))
    assert parse(["smoke"]).cases == ("smoke",)
    assert parse(["smoke", "--subjects", "none"]).peers == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["alexnot"], "CASE 'alexnot': expected a prefix of one of alexnet, overfeat"),
        (["--subjects", "caffe"], "--subjects 'caffe': expected a prefix of one of torch-eager"),
        (["--phases", "step,dance"], "--phases 'dance': expected some of forward, gradients, step"),
        (["--precision", "float16"], "--precision 'float16': expected some of float32, bfloat16"),
        (["--rounds", "0"], "argument --rounds: 0: expected 1 or more"),
    ],
)
def test_an_unknown_value_is_refused_with_the_known_ones(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


BACKUP_RECORD = (
    {"step": 0, "contributors": [0, 1, 2, 3], "dropped": [{"worker": 4, "examples": 8}]},
    {"step": 1, "contributors": [0, 1, 2, 4], "dropped": [{"worker": 3, "examples": 8}]},
    {"step": 2, "contributors": [0, 1, 2, 4], "dropped": []},
)


def test_steps_and_shares_are_counted_by_subject_and_worker() -> None:
    times = ([0.1, 0.1, 0.4], [1.0, 1.0, 2.5], [0.5, 0.5, 0.5])
    records = ((), (), BACKUP_RECORD)
    subjects = [Subject(*each) for each in zip(SUBJECTS, times, records, ["slow"] * 3, strict=True)]
    text = backup.page(subjects, "`x y`")
    assert "- emulated: slow\n- command: `x y`\n" in text
    assert "| 4 workers | 3 | 1000 | 1000-2200 | 1500 | 21 | 1.00 |" in text
    assert "| 4 workers and 1 backup worker | 3 | 500 | 500-500 | 500 | 64 | 0.50 |" in text
    assert "## Contributions of each worker in 3 steps" in text
    assert "| 0 | 3 | 0 | 0 | 0 |" in text
    assert "| 3 | 1 | 1 | 8 | 1 |" in text
    assert "| 4 | 2 | 1 | 8 | 0 |" in text


@pytest.mark.slow
def test_a_turn_is_timed_without_its_first_steps_and_synchronized(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test starts real processes, three of them workers."""
    strategy = ["parallelism=sync_data", "parallelism.combine=parameter_server", "parallelism.backup_workers=1"]
    monkeypatch.setattr("benchmarks.backup.SETTLING", 2)
    with ExitStack() as stack:
        subject = Subject("backup")
        subject.start(["model=mlp", "data=digits", "tracking=none", "cluster.threads_per_worker=1", *strategy], stack)
        subject.take_turn(3)
        subject.take_turn(3)
    assert len(subject.seconds) == 6
    assert [line["step"] for line in subject.record] == list(range(10))
    assert all(len(line["contributors"]) == 2 for line in subject.record)


@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_compared_cases_can_be_configured(name: str) -> None:
    assert configuration(["model=resnet_cifar", "data=synthetic", *SUBJECTS[name]]).parallelism.workers == 4


def test_every_verb_has_help_and_is_listed_in_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    listed = capsys.readouterr().out.split()
    for verb in VERBS:
        assert {verb, f"{verb},", f"{verb}."} & set(listed)
        with pytest.raises(SystemExit, match="0"):
            main([verb, "--help"])
        assert f"usage: python -m benchmarks {verb} " in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_bench_writes_every_page_that_is_kept() -> None:
    for page in (ROOT / "benchmarks").glob("*.md"):
        asked = "" if page.stem == "RESULTS" else page.stem.lower()
        command = ["make", "--dry-run", "bench", f"ARGS={asked}"]
        printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert f"-m benchmarks {asked} --output benchmarks/{page.name}\n" in printed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a run of 20 steps: 10 ms each until time 100.1 s, then 20 ms. Its store lacks a point and has one twice."""
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / "metrics.jsonl").open("w") as log:
        for step in range(20):
            time_s = 100 + 0.01 * step + 0.01 * max(0, step - 10)
            print(json.dumps({"step": step, "time": time_s, "values": {"train/loss": 1.0}}), file=log)
    points = [(step, 0) for step in range(20) if step != 7] + [(3, 1)]
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection, connection:
        connection.execute("CREATE TABLE metrics (key, step, timestamp)")
        connection.executemany("INSERT INTO metrics VALUES ('train/loss', ?, ?)", points)
        connection.execute("INSERT INTO metrics VALUES ('system/cpu_utilization_percentage', 3, 0)")
    return tmp_path


def test_windows_are_compared_in_pairs_and_stored_points_with_logged_points(folder: Path) -> None:
    result = Result("a store", [Window(100, 100.1), Window(100.1, 101)], status="stopped as requested")
    _read(result, folder)
    assert result.medians == pytest.approx([0.01, 0.02])
    assert result.ratios() == pytest.approx([2.0])
    assert (result.points, result.missing, result.repeated) == (20, 1, 1)
    text = tracking.page([result], 60, "`x y`")
    assert "| a store | 1 | 19 | 10.00 | 20.00 | 2.000 | 2.000-2.000 | stopped as requested | 20 | 1 | 1 |" in text
    assert "- command: `x y`" in text
    assert "for all 60 s of" in text


def test_the_measured_training_can_be_configured() -> None:
    assert configuration(TRAINING).train.log_every == 1
