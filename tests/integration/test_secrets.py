"""Secrets stay in stored configurations, which are private, and appear nowhere else."""

import stat
from pathlib import Path

from runner.config.configuration import load_stored
from tests.integration.command import run_command, succeed

SECRET = "hunter2"
# Nobody listens there, so that the address comes up in what is said of the failure.
URI = f"http://me:{SECRET}@127.0.0.1:9"
SMALL = (
    *("model=mlp", "model.hidden=[8]", "parallelism=single", "train.steps=2", "cluster.threads_per_worker=1"),
    f"tracking.uri={URI}",
)


def files_that_tell(folder: Path) -> set[str]:
    """Files below a folder, relative to it, that hold the secret."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in files if SECRET.encode() in path.read_bytes()}


def test_a_run_keeps_its_secret_in_private_files_and_resumes_with_it(tmp_path: Path) -> None:
    kept = {"run/config.yaml"}
    for arguments, earlier in (
        ((*SMALL, "hydra.run.dir=run"), []),
        (("resume=run", "train.steps=3"), ["run/config-1.yaml"]),
    ):
        command = succeed(tmp_path, *arguments)
        assert SECRET not in command.errors + command.output
        kept.update(earlier)
        assert files_that_tell(tmp_path) == kept
    assert load_stored(tmp_path / "run" / "config.yaml").tracking.uri == URI
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in kept} == {0o600}
    assert "http://[redacted]@127.0.0.1:9" in (tmp_path / "run" / "run.log").read_text()


def test_a_sweep_keeps_its_secret_in_private_files(tmp_path: Path) -> None:
    command = succeed(tmp_path, "-m", *SMALL, "optimizer.lr=0.01,0.1", "hydra.sweep.dir=sweep")
    assert SECRET not in command.errors + command.output
    told = files_that_tell(tmp_path)
    assert {"sweep/plan.json", "sweep/0/frozen.yaml", "sweep/1/config.yaml"} <= told
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in told} == {0o600}


def test_an_error_message_does_not_repeat_a_secret(tmp_path: Path) -> None:
    command = run_command(tmp_path, f"tracking.uri=ftp://me:{SECRET}@host")
    assert command.code == 2
    assert "ftp://[redacted]@host" in command.errors
    assert SECRET not in command.errors
