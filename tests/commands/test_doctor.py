"""``runner doctor``: its report, and the findings that are trouble."""

import importlib.metadata
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from runner.cli import main
from runner.commands import doctor
from tests.gpus import NO_DRIVER, gpu, machine

Capture = pytest.CaptureFixture[str]
TOPICS = (
    "python",
    "cpu flags",
    "cores",
    "memory",
    "shared memory",
    "run outputs",
    "configuration",
    "numpy",
    "mlflow",
    "hydra-core",
    "blas",
    "kernels",
    "libzmq",
    "gpu",
    "gpu driver",
    "gpu CuPy",
    "gpu cuDNN frontend",
    "tracking store",
    "hydra joblib",
    "hydra submitit",
    "datasets",
    "git",
)


def report(capsys: Capture) -> str:
    return capsys.readouterr().out


def test_everything_a_run_relies_on_is_reported(folder: Path, capsys: Capture):
    assert main(["doctor"]) == 0
    text = report(capsys)
    for topic in TOPICS:
        assert f"\n{topic} " in f"\n{text}"
    assert text.endswith("\nno trouble found\n")


def test_gpus_and_their_libraries_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "discover", lambda: machine(gpu(0), gpu(1)))
    assert [f"{each.topic}: {each.found}" for each in doctor._gpus()] == [
        "gpu: 2 gpu(s), cluster.device=auto takes them",
        "gpu driver: 580.1 for CUDA up to 13.0",
        "gpu 0: Big GPU, compute capability 9.0, 80.0 GiB",
        "gpu 1: Big GPU, compute capability 9.0, 80.0 GiB",
        "gpu CuPy: 14.2.0 (cupy-cuda13x)",
    ]


def test_a_machine_without_gpus_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "discover", lambda: NO_DRIVER)
    assert [(f"{each.topic}: {each.found}", each.trouble) for each in doctor._gpus()] == [
        ("gpu: 0 gpu(s), none is used: there is no NVIDIA driver: no libcuda", ""),
        ("gpu driver: none", ""),
    ]


def test_a_cause_of_failure_is_trouble(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "SHARED_MEMORY", folder / "absent")
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 4))
    monkeypatch.setattr(
        doctor, "_requirements", lambda: [doctor.Requirement("numpy<1"), doctor.Requirement("nosuch>2")]
    )
    assert main(["doctor"]) == 4
    text = report(capsys)
    assert f"trouble: shared memory: {folder / 'absent'} is missing" in text
    assert "trouble: libzmq: older than 4.3.5" in text
    assert "trouble: numpy: version " in text
    assert "; expected numpy<1\n" in text
    assert "trouble: nosuch: not installed; expected nosuch>2" in text
    assert "no trouble found" not in text


def test_little_shared_memory_is_trouble(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    assert main(["doctor"]) == 4
    text = report(capsys)
    assert "has less than 64 MiB free" in text
    assert f"trouble: run outputs: {folder} has less than 1 GiB free: checkpoints and plots need room" in text


def test_a_folder_that_cannot_be_written_is_trouble(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    def refuse(dir: Path) -> None:  # noqa: A002 - tempfile's own name
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    assert main(["doctor"]) == 4
    assert f"trouble: run outputs: {folder} is not writable: Permission denied" in report(capsys)


def test_a_machine_without_git_is_no_trouble(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert main(["doctor"]) == 0
    assert "not found; runs are recorded without a commit" in report(capsys)


@pytest.mark.parametrize("error", [OSError("no"), subprocess.TimeoutExpired("git", 10)])
def test_git_that_does_not_answer_is_no_trouble(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments: object, **settings: object) -> None:
        raise error

    monkeypatch.setattr(doctor.shutil, "which", lambda name: "git")
    monkeypatch.setattr(doctor.subprocess, "run", fail)
    (finding,) = doctor._git()
    assert finding.found == f"does not answer: {error}; runs are recorded without a commit"
    assert not finding.trouble


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"avx2", "amx_bf16"}, "native (amx_bf16)"),
        ({"avx2"}, "not native, precision=bfloat16 is refused: none of avx512_bf16, amx_bf16"),
    ],
)
def test_it_reports_whether_bfloat16_is_native(
    flags: set[str], line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    monkeypatch.setattr("runner.system.machine.cpu_flags", lambda: frozenset(flags))
    assert main(["doctor"]) == 0
    assert f"bfloat16         {line}" in report(capsys)


def test_requirements_come_from_the_base_install_only():
    names = {requirement.name for requirement in doctor._requirements()}
    assert {"numpy", "hydra-core", "mlflow"} <= names
    assert "pytest" not in names


def test_it_reports_how_to_install_a_launcher(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    found = {"hydra-joblib-launcher": "1.2.0"}

    def version(name: str) -> str:
        if name.endswith("-launcher") and name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found.get(name, "0")

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    lines = [f"{each.topic}: {each.found}" for each in doctor._launchers()]
    assert lines == [
        "hydra joblib: 1.2.0",
        "hydra submitit: not installed; hydra/launcher=submitit needs it: pip install hydra-submitit-launcher",
    ]
