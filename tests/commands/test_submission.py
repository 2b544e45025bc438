"""Submission of a run to Slurm, with commands of Slurm that are replaced by scripts."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli import main
from runner.commands.submission import submit_run
from runner.system.slurm import JOB
from tests.fake_training import FakeTraining
from tests.refusal import Capture, refused
from tests.small_runs import small_config

SLURM = ("model=mlp", "tracking=none", "cluster/launcher=slurm", "cluster.threads_per_worker=1", "hydra.run.dir=my run")
RAY = "cluster/launcher=ray"


@pytest.fixture
def commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with commands that write their arguments and input to files there; the first on the path."""
    place = folder / "bin"
    place.mkdir()
    for name in ("sbatch", "scontrol", "squeue"):
        script = place / name
        script.write_text(
            f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {place}/{name}.args; cat > {place}/{name}.in; echo ${{STATE:-17}}\n"
        )
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    monkeypatch.delenv(JOB, raising=False)
    return place


def test_a_run_without_allocation_submits_itself(commands: Path, fake_training: FakeTraining, capsys: Capture) -> None:
    assert main([*SLURM, "cluster.launcher.sbatch={nodes: 2, time: 60, exclusive: true}"]) == 0
    assert "submitted as job 17 of Slurm" in capsys.readouterr().out
    assert not fake_training.calls
    given = (commands / "sbatch.args").read_text().splitlines()
    assert {"--requeue", "--ntasks=2", "--cpus-per-task=1", "--nodes=2", "--time=60", "--exclusive"} <= set(given)
    assert "--no-kill" not in given
    script = (commands / "sbatch.in").read_text()
    run_dir = Path("my run").absolute()
    assert shlex.quote(f"hydra.run.dir='{run_dir}'") in script
    assert shlex.quote(f"resume={run_dir}") in script
    assert main([*SLURM, "cluster.min_workers=1"]) == 0
    assert "--no-kill" in (commands / "sbatch.args").read_text().splitlines()
    assert main([*SLURM, "cluster.spares=2"]) == 0
    assert {"--no-kill", "--ntasks=4"} <= set((commands / "sbatch.args").read_text().splitlines())
    assert main([*SLURM, "cluster.spares=2", "train.restarts=0"]) == 0
    assert "--ntasks=2" in (commands / "sbatch.args").read_text().splitlines()
    (commands / "sbatch.args").unlink()
    assert main(["simulate", *SLURM]) == 0
    assert not (commands / "sbatch.args").exists()
    assert fake_training.only.config.simulate.updates == 5


def test_a_directory_that_cannot_be_created_is_named(commands: Path, capsys: Capture) -> None:
    Path("file").touch()
    message = refused([*SLURM[:-1], "hydra.run.dir=file/run"], capsys, code=4)
    assert f"cannot write in {Path('file/run').absolute()}: Not a directory" in message
    assert not (commands / "sbatch.args").exists()


def test_an_allocation_is_used(commands: Path, fake_training: FakeTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOB, "17")
    assert main(SLURM) == 0
    assert not (commands / "sbatch.args").exists()


@pytest.mark.parametrize(
    ("code", "state", "requeued"),
    [(0, "RUNNING", False), (7, "RUNNING", False), (143, "RUNNING", True), (143, "CANCELLED", False)],
)
def test_the_script_starts_or_continues_the_run_and_requeues_after_a_notice(
    commands: Path, monkeypatch: pytest.MonkeyPatch, code: int, state: str, requeued: bool
) -> None:
    own = [sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(int(sys.argv[-1]))"]
    monkeypatch.setattr("runner.commands.submission.runner_command", lambda: own)
    config, run_dir = small_config(*SLURM[2:4]), Path("run").absolute()
    assert submit_run(config, run_dir, ["first", str(code)], ["later", str(code)])
    script = (commands / "sbatch.in").read_text()

    def execute() -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{commands}:/usr/bin:/bin", JOB: "17", "STATE": state}
        return subprocess.run(["sh", "-c", script], env=environment, input="", capture_output=True, text=True)

    ended = execute()
    assert (ended.returncode, "first" in ended.stdout, ended.stderr) == (code, True, "")
    assert (commands / "scontrol.args").exists() == requeued
    for name in ("run.json", "config.yaml"):
        (run_dir / name).touch()
    assert "later" in execute().stdout


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["cluster.launcher.sbatch={output: x}"], "launcher.sbatch={'output': 'x'}: expected a text, a whole number"),
        (["cluster.launcher.sbatch={exclusive: false}"], "sbatch={'exclusive': False}: expected a text, a whole"),
        (["cluster.launcher.sbatch=[1]"], "launcher.sbatch=[1]: expected a text, a whole number or true for some of"),
        (["cluster.launcher.ray=local"], "launcher.kind=slurm: expected ray, because launcher.ray is set"),
        (["cluster.launcher.placement=spread"], "kind=slurm: expected ray, because launcher.placement is set"),
        ([RAY, "cluster.launcher.ray=here"], "launcher.ray=here with cluster/launcher=ray: expected"),
        ([RAY, "cluster.launcher.placement=PACK"], "launcher.placement='PACK': expected one of pack"),
        (["cluster.device=gpu"], "cluster.device=gpu with cluster/launcher=slurm: GPUs of other hosts are not"),
        (["parallelism=single"], "cluster/launcher=slurm: parallelism=single has one process"),
    ],
    ids=" ".join,
)
def test_settings_of_launchers_that_cannot_be_used_are_refused(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, overrides: list[str], complaint: str
) -> None:
    monkeypatch.setenv(JOB, "17")
    assert complaint in refused([*SLURM, *overrides], capsys)


def test_a_sweep_outside_of_an_allocation_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    monkeypatch.delenv(JOB, raising=False)
    assert main([*SLURM[:-1], "-m", "seed=1", "train.epochs=null", "train.steps=1", "hydra.sweep.dir=sweep"]) == 1
    assert "expected an allocation of Slurm (salloc or sbatch)" in capsys.readouterr().err
