"""The verbs ``new``, ``list``, ``sync`` and ``doctor``."""

import importlib.metadata
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import zmq

from runner.cli import main
from runner.commands import doctor
from runner.commands.list import KINDS, leading_comment, lines
from runner.commands.new import KINDS as TEMPLATES
from runner.commands.table_files import TableReader, current
from runner.config.conf_dir import TABLES, conf_dir
from runner.config.groups import GROUPS
from runner.engine.run.kernel_table import load_kernels
from runner.records.run_directory import RunDirectory
from runner.tables.table_file import read_table
from runner.tracking.records import Tags
from runner.tracking.replay import Replay
from runner.tracking.spool import SPOOL_FILE, Spool
from tests.gpus import NO_DRIVER, gpu, machine
from tests.integration.command import QUIET, summary_of
from tests.plugin_tables import restored_tables
from tests.refusal import Capture, refused

FEW_STEPS = (*QUIET, "train.steps=2", "hydra.run.dir=run")


@pytest.mark.parametrize("kind", sorted(TEMPLATES.keys() - {TABLES}))
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


def test_the_template_of_a_table_runs_with_the_printed_commands(folder: Path, capsys: Capture) -> None:
    assert main(["new", "table", "my_own"]) == 0
    wrote, *commands = capsys.readouterr().out.splitlines()
    path = Path(wrote.removeprefix("wrote "))
    assert written(folder) == [path] == [Path("conf/table/my_own.yaml")]
    table = read_table(path)
    assert (list(table.runs), table.seeds) == (["momentum", "adam"], (1, 2, 3, 4, 5))
    shorter = {"seeds: [1, 2, 3, 4, 5]": "seeds: [1]", "train.epochs=10": "train.steps=90", "  - model=mlp": QUIET_BASE}
    text = path.read_text()
    for long, short in shorter.items():
        assert text.count(long) == 1
        text = text.replace(long, short)
    path.write_text(text)
    for command in commands:
        assert main(shlex.split(command.partition(": runner ")[2])) == 0
    assert "momentum & " in Path("my_own.tex").read_text()
    verdicts = {line.cell: line.verdict for line in current(TableReader().read(path)).lines}
    assert verdicts == {"momentum/accuracy": "inconclusive at 1 seed", **dict.fromkeys(sorted(CELLS), "")}


CELLS = {"momentum/early", "momentum/loss", "adam/accuracy", "adam/early", "adam/loss"}
QUIET_BASE = "\n".join(f"  - {override}" for override in ("model=mlp", *QUIET))


def written(folder: Path) -> list[Path]:
    return [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("taken", ["my_own.py", "conf/model/my_own.yaml"])
def test_existing_files_are_not_overwritten(taken: str, folder: Path, capsys: Capture) -> None:
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
        ("model", "MyNet", "name 'MyNet': expected lowercase letters, digits and underscores"),
        ("model", "../net", "name '../net': expected lowercase letters"),
        ("op", "lambda", "name 'lambda': expected lowercase letters"),
        ("model", "lenet", "name 'lenet' is the name of a built-in model; choose another, such as my_lenet"),
        ("op", "relu", "name 'relu' is the name of a built-in op"),
        ("table", "network_sizes", "name 'network_sizes' is the name of a built-in table; choose another"),
    ],
)
def test_invalid_names_are_refused(kind: str, name: str, complaint: str, folder: Path, capsys: Capture) -> None:
    assert complaint in refused(["new", kind, name], capsys)
    assert written(folder) == []


def test_a_folder_that_cannot_be_written_is_named(folder: Path, capsys: Capture) -> None:
    Path("conf").write_text("no folder")
    assert "cannot write conf" in refused(["new", "model", "my_own"], capsys, code=4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_of_a_table_and_every_yaml_file_has_a_separate_line(kind: str) -> None:
    found = lines(kind, [conf_dir()])
    group = KINDS[kind]
    assert set(found) == {*GROUPS.get(group, ()), *(file.stem for file in (conf_dir() / group).glob("*.yaml"))}
    assert found or kind == "callbacks", "callbacks come from plugins"
    for name, line in found.items():
        assert 20 < len(line) < 200, name
        assert line.endswith((".", "?", "w + v.")), name
        assert "Settings of" not in line, name
        assert not set(line) & set("`\n"), name
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("kind", KINDS)
def test_list_prints_a_line_for_each_entry(kind: str, capsys: Capture) -> None:
    assert main(["list", kind]) == 0
    _, *printed = capsys.readouterr().out.splitlines()
    assert [tuple(line.split(maxsplit=1)) for line in printed] == list(lines(kind, [conf_dir()]).items())


def test_without_a_kind_the_kinds_are_listed(capsys: Capture) -> None:
    assert main(["list"]) == 0
    output = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in output[1:]] == list(KINDS)
    assert "parallelism=NAME" in output[6]
    assert "+debug=NAME" in output[-1]


def test_yaml_files_of_the_user_are_listed_too(folder: Path, capsys: Capture) -> None:
    (folder / "own" / "experiment").mkdir(parents=True)
    mine = folder / "own" / "experiment" / "mine.yaml"
    mine.write_text("# @package _global_\n# Mine (after X et al. 2012). More.\n")
    assert main(["list", "experiments", "--config-dir", "own"]) == 0
    output = capsys.readouterr().out
    assert "\nmine " in output
    assert "  Mine (after X et al. 2012).\n" in output
    assert "\nmnist_lenet " in output


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# @package _global_\n# One.\n#   runner x\n# Two.\n", "One."),
        ("# Does it run? Then go on.\nx: 1\n# Later.\n", "Does it run?"),
        ("# On two\n# lines: 98.5 % here.\n", "On two lines: 98.5 % here."),
        ("x: 1\n", ""),
    ],
)
def test_the_description_is_the_first_sentence_of_the_leading_comment(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    assert leading_comment(file) == sentence


@pytest.fixture
def left(folder: Path) -> Path:
    """Return the directory of a run whose configuration names no store, with a tracking record that is not yet sent."""
    run = folder / "outputs" / "run"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("tracking: {uri: null}\n")
    Spool(run / SPOOL_FILE).append([Tags({"a": "b"})])
    return run


def test_the_records_of_each_run_are_written_once(left: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    requested: list[Path] = []
    monkeypatch.setattr(Replay, "run", lambda self, run_dir, uri, end: requested.append(run_dir) or 1)
    assert main(["sync", "outputs", "outputs/run"]) == 0
    assert requested == [left]
    assert capsys.readouterr().out == "written to the tracking store: 1 record of 1 run\n"


def test_records_that_could_not_be_written_stay_pending(left: Path, capsys: Capture):
    assert main(["sync", "outputs"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"`runner resume={left}` writes its records): {left}" in err
    assert err.endswith(f"warning: write them with `runner sync {left.parent}`\n")
    assert (left / SPOOL_FILE).exists()


def test_a_run_that_is_still_running_is_not_a_failure(left: Path, capsys: Capture):
    with RunDirectory.open(left, resume=False):
        assert main(["sync", "outputs"]) == 0
    assert capsys.readouterr().out == f"skipped, still running: {left}\n"


def test_without_pending_records_nothing_is_done(folder: Path, capsys: Capture):
    assert main(["sync", "."]) == 0
    assert capsys.readouterr().out == "no tracking records are waiting\n"
    assert list(folder.iterdir()) == []


TOPICS = (
    "python, cpu flags, cores, memory, shared memory, run outputs, configuration, numpy, mlflow, hydra-core, blas, "
    "kernels, libzmq, gpu, gpu driver, gpu CuPy, gpu cuDNN frontend, tracking store, hydra joblib, hydra submitit, "
    "datasets, git"
)

Report = Callable[..., str]


@pytest.fixture
def report(folder: Path, capsys: Capture) -> Report:
    """Return a function that runs ``runner doctor``, checks its exit code and returns the output."""

    def report(code: int = 0) -> str:
        assert main(["doctor"]) == code
        return capsys.readouterr().out

    return report


def findings(examine: Callable[[], Iterable[doctor.Finding]]) -> list[str]:
    """Return the findings of one function of ``doctor``, and require that no finding is marked as trouble."""
    found = list(examine())
    assert not any(each.trouble for each in found)
    return [f"{each.topic}: {each.found}" for each in found]


def test_everything_that_a_run_needs_is_reported(report: Report) -> None:
    text = report()
    assert [topic for topic in TOPICS.split(", ") if f"\n{topic} " not in f"\n{text}"] == []
    assert text.endswith("\nno problems found\n")


def test_gpus_are_listed_with_their_libraries_and_no_gpu_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "discover", lambda: machine(gpu(0), gpu(1)))
    assert findings(doctor._gpus) == [
        "gpu: 2 gpu(s), used by cluster.device=auto",
        "gpu driver: 580.1 for CUDA up to 13.0",
        "gpu 0: Big GPU, compute capability 9.0, 80.0 GiB",
        "gpu 1: Big GPU, compute capability 9.0, 80.0 GiB",
        "gpu CuPy: 14.2.0 (cupy-cuda13x)",
    ]
    monkeypatch.setattr(doctor, "discover", lambda: NO_DRIVER)
    nothing = "gpu: 0 gpu(s), not used: there is no NVIDIA driver: no libcuda"
    assert findings(doctor._gpus) == [nothing, "gpu driver: none"]


def test_a_cause_of_failure_is_trouble(report: Report, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    required = [doctor.Requirement("numpy<1"), doctor.Requirement("nosuch>2")]
    monkeypatch.setattr(doctor, "SHARED_MEMORY", folder / "absent")
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 4))
    monkeypatch.setattr(doctor, "_requirements", lambda: required)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:mlruns")
    text = report(4)
    assert "trouble: tracking store: tracking store 'file:mlruns': expected an address that starts with" in text
    assert f"trouble: shared memory: {folder / 'absent'} is missing" in text
    assert "trouble: libzmq: older than 4.3.5" in text
    assert re.search(r"trouble: numpy: version .*; expected numpy<1\n", text)
    assert "trouble: nosuch: not installed; expected nosuch>2" in text
    assert "no problems found" not in text


def refuse(dir: Path) -> None:  # noqa: A002 - the name in tempfile
    raise PermissionError(13, "Permission denied")


def full(path: Path) -> SimpleNamespace:
    return SimpleNamespace(free=2**20)


OUTPUTS = "trouble: run outputs: {folder}"


@pytest.mark.parametrize(
    ("name", "replacement", "code", "expected"),
    [
        ("shutil.disk_usage", full, 4, "has less than 64 MiB free"),
        ("shutil.disk_usage", full, 4, f"{OUTPUTS} has less than 1 GiB free: checkpoints and plots"),
        ("tempfile.TemporaryFile", refuse, 4, f"{OUTPUTS} is not writable: Permission denied"),
        ("shutil.which", lambda name: None, 0, "not found; runs are recorded without a commit"),
        ("cpu_flags", lambda: {"avx2", "amx_bf16"}, 0, "bfloat16         native (amx_bf16)"),
        ("cpu_flags", lambda: {"avx2"}, 0, "bfloat16         not native (none of avx512_bf16, amx_bf16); precision="),
    ],
)
def test_doctor_reports_the_state_of_the_machine(
    report: Report, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, replacement: Any, code: int, expected: str
) -> None:
    module = "runner.system.machine" if name == "cpu_flags" else "runner.commands.doctor"
    monkeypatch.setattr(f"{module}.{name}", replacement)
    assert expected.format(folder=folder) in report(code)


@pytest.mark.parametrize("error", [OSError("no"), subprocess.TimeoutExpired("git", 10)])
def test_git_that_does_not_answer_is_not_an_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "git")
    monkeypatch.setattr(doctor.subprocess, "run", Mock(side_effect=error))
    assert findings(doctor._git) == [f"git: does not answer: {error}; runs are recorded without a commit"]


def test_requirements_come_from_the_base_install_only() -> None:
    names = {requirement.name for requirement in doctor._requirements()}
    assert {"numpy", "hydra-core", "mlflow"} <= names
    assert "pytest" not in names


def test_doctor_reports_how_to_install_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "hydra-submitit-launcher":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.2.0"

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    assert findings(doctor._launchers) == [
        "hydra joblib: 1.2.0",
        "hydra submitit: not installed; hydra/launcher=submitit_slurm needs it: pip install hydra-submitit-launcher",
        "hydra ray: 1.2.0",
    ]
