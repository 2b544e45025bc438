"""A directory belongs to one run and one process at a time: locks, counted starts (epochs), and error messages."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.errors import CheckpointError, ConfigError, DirectoryInUseError, ResourceError
from runner.records.run_directory import RunDirectory


def start(path: Path) -> RunDirectory:
    return RunDirectory.open(path, resume=False)


def resume(path: Path) -> RunDirectory:
    return RunDirectory.open(path, resume=True)


@contextmanager
def other_process_holding(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that begins a run in ``path`` and holds its lock until the block ends."""
    program = (
        "import sys; from runner.records.run_directory import RunDirectory\n"
        f"with RunDirectory.open({str(path)!r}, resume=False):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield child


def test_new_run_creates_its_directory(tmp_path: Path) -> None:
    with start(tmp_path / "outputs" / "first") as directory:
        assert directory.path == tmp_path / "outputs" / "first"
        assert directory.epoch == 1
        assert re.fullmatch("[0-9a-f]{16}", directory.run_id)
        created = {path.name for path in directory.path.iterdir()}
        assert created == {"run.lock", "run.json", "checkpoints", "plots", "workers"}
    with start(tmp_path / "second") as second:
        assert second.run_id != directory.run_id


def test_relative_path_survives_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with start(Path("here")) as directory:
        monkeypatch.chdir("/")
        directory.config_yaml.write_text("seed: 0\n")
    assert (tmp_path / "here" / "config.yaml").exists()


def test_resume_keeps_the_run_and_counts_the_start(tmp_path: Path) -> None:
    with start(tmp_path) as first:
        assert first.epoch == 1
    for epoch in (2, 3):
        with resume(tmp_path) as again:
            assert (again.run_id, again.epoch) == (first.run_id, epoch)
    assert json.loads((tmp_path / "run.json").read_bytes()) == {"version": 1, "run_id": first.run_id, "epoch": 3}


def test_epoch_counts_starts_that_were_killed(tmp_path: Path) -> None:
    with other_process_holding(tmp_path) as child:
        child.kill()
    with resume(tmp_path) as directory:
        assert directory.epoch == 2


def test_second_process_is_refused_with_exit_code_9(tmp_path: Path) -> None:
    with other_process_holding(tmp_path) as child:
        expected = f"^{re.escape(str(tmp_path))} is in use by process {child.pid}: .*hydra.run.dir=DIR"
        for again in (start, resume):
            with pytest.raises(DirectoryInUseError, match=expected) as caught:
                again(tmp_path)
            assert caught.value.exit_code == 9
        child.stdin.close()  # type: ignore[union-attr]
    with resume(tmp_path) as directory:
        assert directory.epoch == 2, "the refused starts did not count"


def test_run_held_by_an_unknown_process_is_refused(tmp_path: Path) -> None:
    with start(tmp_path):
        (tmp_path / "run.lock").write_text("\x1b[2J")
        with pytest.raises(DirectoryInUseError, match="is in use by another process:"):
            resume(tmp_path)


def test_the_lock_is_released_at_the_end_of_the_block_even_after_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with start(tmp_path):
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    with resume(tmp_path) as directory:
        directory.close()
        with resume(tmp_path) as again:
            assert again.epoch == 3


def test_children_do_not_inherit_the_lock(tmp_path: Path) -> None:
    directory = start(tmp_path)
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        directory.close()
        resume(tmp_path).close()
        assert child.poll() is None
        child.kill()


def test_finished_run_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "my run"
    with start(path) as first:
        first.store_configuration(b"seed: 0\n")
    before = (path / "run.json").read_bytes()
    with pytest.raises(DirectoryInUseError, match=rf"already holds a run: .*`runner resume='{path}'`.*hydra\.run\.dir"):
        start(path)
    assert (path / "run.json").read_bytes() == before
    with resume(path) as again:
        assert again.run_id == first.run_id


def test_a_directory_whose_preparation_was_cut_off_starts_a_new_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("not: of a run")
    with start(tmp_path) as first:
        assert not (tmp_path / "config.yaml").exists()
    assert (tmp_path / "config-0.yaml").read_text() == "not: of a run"
    with start(tmp_path) as second:
        assert (second.run_id != first.run_id, second.epoch) == (True, 1)


@pytest.mark.parametrize("lost", ["run.json", "config.yaml"])
def test_a_run_that_lost_a_file_keeps_its_checkpoints(tmp_path: Path, lost: str) -> None:
    with start(tmp_path) as first:
        first.store_configuration(b"seed: 0\n")
        (first.checkpoints / "step-3").mkdir()
    (tmp_path / lost).unlink()
    with pytest.raises(DirectoryInUseError, match="already holds a run"):
        start(tmp_path)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_resume_of_a_missing_run_creates_no_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=rf"resume=.*{name}: there is no run to resume \(no run\.json\)"):
        resume(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "not JSON"),
        ('{"version": 2, "run_id": "a", "epoch": 1}', "version: 2, expected 1"),
        ('{"version": 1, "run_id": "../a", "epoch": 1}', r"run_id: '\.\./a', expected text of at most 128"),
        ('{"version": 1, "run_id": "a", "epoch": 0}', "epoch: 0, expected a whole number from 1"),
        (" " * 70_000, "exceeds the limit of 65536 bytes"),
    ],
)
def test_damaged_state_is_refused(content: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(CheckpointError, match=rf"run\.json is damaged: {fault}.*; the checkpoints next to it are not"):
        resume(tmp_path)
    assert (tmp_path / "run.json").read_text() == content
    with pytest.raises(CheckpointError, match="damaged"):
        resume(tmp_path)  # the lock was released


def test_error_while_the_start_is_counted_keeps_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path).close()
    with monkeypatch.context() as patch:

        def no_space(descriptor: int, offset: int, length: int) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "posix_fallocate", no_space)
        with pytest.raises(ResourceError, match=r"cannot write in .*: No space left on device; .*free space"):
            resume(tmp_path)
    with resume(tmp_path) as directory:
        assert directory.epoch == 2


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("file", r"cannot write in .*file: Not a directory .*hydra\.run\.dir=DIR"),
        ("file/below", r"cannot write in .*file/below: Not a directory .*hydra\.run\.dir=DIR"),
        # No directory can be created in /proc, not even by root.
        ("/proc/runs/1", r"cannot write in /proc/runs/1: .*expected a writable directory"),
    ],
)
def test_a_path_that_cannot_be_a_directory_is_refused(place: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match=message):
        start(tmp_path / place)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ResourceError, match="Permission denied"):
        start(tmp_path)


def test_lock_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "run.lock").symlink_to(tmp_path / "target")
    with pytest.raises(ResourceError, match="symbolic link"):
        start(tmp_path)
    assert not (tmp_path / "target").exists()


def test_an_earlier_configuration_stays_as_private_as_it_was(tmp_path: Path) -> None:
    for resume, text, private in ((False, b"token: 1", True), (True, b"seed: 1", False)):
        with RunDirectory.open(tmp_path, resume) as directory:
            directory.store_configuration(text, private=private)
    assert (tmp_path / "config-1.yaml").read_bytes() == b"token: 1"
    assert (tmp_path / "config-1.yaml").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "config.yaml").stat().st_mode & 0o044
