"""A save is atomic: after any failure at any time, the newest checkpoint on the disk is complete."""

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import BEST_STEP, CheckpointMeta, load, newest, save
from runner.errors import CheckpointError, ConfigError, DirectoryInUseError, NumericError, ResourceError

CRASH_SCRIPT = Path(__file__).with_name("checkpoint_crash.py")


def commit(directory: Path, step: int, epoch: int = 1, keep: int = 3, best: int | None = None) -> Path:
    progress = {} if best is None else {BEST_STEP: best}
    meta = CheckpointMeta(config_hash="c0ffee", run_id="0123abcd", epoch=epoch, examples=step, progress=progress)
    return save(directory, step=step, variables={"w": np.full((64,), float(step))}, meta=meta, keep=keep)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def of_descriptor(descriptor: int, *rest: object) -> str:
    """Return the name of the open file that ``descriptor`` refers to."""
    return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name


def require_whole(directory: Path, allowed: set[int]) -> None:
    """Require that the newest step is one of ``allowed``, and that each committed checkpoint has its step's values."""
    found = newest(directory)
    assert found is not None
    assert load(found).step in allowed
    for path in directory.glob("step-*"):
        if "." not in path.name:
            step, variables, _ = load(path)
            np.testing.assert_array_equal(variables["w"], float(step))
            assert path.name == f"step-{step}"


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Return a folder with checkpoints of steps 1, 2 and 3."""
    for step in (1, 2, 3):
        commit(tmp_path / "checkpoints", step)
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("thread", [(), ("background",)])
def test_a_kill_at_any_call_leaves_a_complete_checkpoint(thread: tuple[str, ...], three: Path, tmp_path: Path) -> None:
    root = tmp_path / "copies"
    root.mkdir()
    command = [sys.executable, str(CRASH_SCRIPT), str(three), str(root), *thread]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    died_before = finished.stdout.split()
    assert {"mkdir", "posix_fallocate", "fsync", "rename", "rmdir"} <= set(died_before)
    committed_at = [(root / str(k) / "step-4").exists() for k in range(len(died_before))]
    assert committed_at == sorted(committed_at), "once committed, it stays"
    assert 0 < sum(committed_at) < len(committed_at), "some died before the rename and some after"
    for k, is_committed in enumerate(committed_at):
        directory = root / str(k)
        require_whole(directory, {4} if is_committed else {3})
        commit(directory, 4, epoch=2)
        commit(directory, 5, epoch=2)
        assert names(directory) == ["step-3", "step-4", "step-5"]


CALLS = ("mkdir", "posix_fallocate", "fsync", "rename", "unlink", "rmdir", "posix_fadvise")


def fail_call(patch: pytest.MonkeyPatch, name: str, number: int) -> Iterator[int]:
    """Make call ``number`` (from 0) of ``name``, a function of ``os``, fail with EIO; return a counter of its calls."""
    counter, function = itertools.count(), getattr(os, name)

    def failing(*arguments: object, **options: object) -> object:
        if next(counter) == number:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return function(*arguments, **options)

    patch.setattr(os, name, failing)
    return counter


@pytest.mark.parametrize("name", CALLS)
def test_failing_calls_keep_checkpoints(
    name: str, three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in itertools.count():
        directory = tmp_path / str(number)
        shutil.copytree(three, directory)
        with monkeypatch.context() as patch:
            calls = fail_call(patch, name, number)
            try:
                commit(directory, 4)
            except ResourceError as error:
                message = str(error)
            else:
                assert next(calls) == number, "an I/O error was ignored"
                break
        assert f"cannot write checkpoint {directory / 'step-4'}: Input/output error" in message
        require_whole(directory, {3, 4})
        assert {"step-2", "step-3"} <= set(names(directory))
        commit(directory, 4)
        commit(directory, 5)
        assert names(directory) == ["step-3", "step-4", "step-5"]
    assert number > 0, f"a save never calls os.{name}"


def test_failed_save_frees_its_disk_space(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(ResourceError, match=r"step-4: No space left on device; older checkpoints were kept"):
        commit(three, 4)
    assert names(three) == ["step-1", "step-2", "step-3"]


def test_too_little_free_space_is_found_before_writing(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(three)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    monkeypatch.setattr(os, "mkdir", None)
    with pytest.raises(ResourceError, match=r"needs \d+ bytes, 100 are free"):
        commit(three, 4)


def test_a_commit_flushes_and_renames_in_order(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def record(name: str, subject: Callable[..., str]) -> None:
        function = getattr(os, name)

        def recorded(*arguments: object, **options: object) -> object:
            events.append(f"{name} {subject(*arguments)}")
            return function(*arguments, **options)

        monkeypatch.setattr(os, name, recorded)

    record("posix_fallocate", of_descriptor)
    record("fsync", of_descriptor)
    record("posix_fadvise", of_descriptor)
    record("rename", lambda old, new: f"{Path(old).name} {Path(new).name}")
    record("rmdir", lambda path: Path(path).name)
    commit(three, 4, epoch=7)
    read_back = [event for event in events if event.startswith("posix_fadvise")]
    assert sorted(read_back) == ["posix_fadvise manifest.json", "posix_fadvise variables.safetensors"]
    assert [event for event in events if event not in read_back] == [
        "posix_fallocate variables.safetensors",
        "fsync variables.safetensors",
        "posix_fallocate manifest.json",
        "fsync manifest.json",
        "fsync step-4.tmp-7",
        "rename step-4.tmp-7 step-4",
        "fsync checkpoints",
        "rename step-1 step-1.discarded-7",
        "fsync checkpoints",
        "rmdir step-1.discarded-7",
    ]
    assert events.index("rename step-1 step-1.discarded-7") > max(map(events.index, read_back))


def test_no_checkpoint_is_deleted_if_the_read_back_fails(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def rename_and_damage(old: Path, new: Path) -> None:
        rename(old, new)
        shard = Path(new) / "variables.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")

    monkeypatch.setattr(os, "rename", rename_and_damage)
    with pytest.raises(CheckpointError, match=r"cannot be read back: .*step-4: .*SHA-256.*; older checkpoints were"):
        commit(three, 4)
    assert names(three) == ["step-1", "step-2", "step-3", "step-4"]
    assert newest(three) == three / "step-3"


def test_prune_keeps_the_newest_checkpoints(tmp_path: Path) -> None:
    for step in (5, 10, 15, 100, 105):
        commit(tmp_path, step, keep=4)
    assert names(tmp_path) == ["step-10", "step-100", "step-105", "step-15"]
    commit(tmp_path, 110, keep=3)
    assert names(tmp_path) == ["step-100", "step-105", "step-110"]


def test_damaged_later_checkpoints_do_not_replace_good_ones(three: Path) -> None:
    for step in (7, 8, 9):
        shutil.copytree(three / "step-1", three / f"step-{step}")
    commit(three, 4)
    assert {"step-2", "step-3", "step-4"} <= set(names(three))
    assert "step-1" not in names(three)


@pytest.mark.parametrize("keep", [2, 0, -1])
def test_keeping_fewer_than_three_checkpoints_is_refused(keep: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"checkpoint\.keep={keep}: expected 3 or more"):
        commit(tmp_path, 1, keep=keep)


def test_saving_the_same_values_again_changes_nothing(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (three / "step-3").stat()
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(of_descriptor(descriptor)))
    assert commit(three, 3, epoch=2) == three / "step-3"
    assert flushed == ["checkpoints"], "the earlier save may have failed just after its rename"
    assert (three / "step-3").stat() == before
    assert load(three / "step-3").manifest.meta.epoch == 1


def test_another_progress_with_the_same_values_is_stored(three: Path) -> None:
    commit(three, 3, epoch=2, best=3)
    assert load(three / "step-3").manifest.meta.best_step == 3
    assert names(three / "step-3") == ["manifest.json", "variables.safetensors"]


def test_saving_other_values_at_an_existing_step_is_refused(three: Path) -> None:
    meta = CheckpointMeta(config_hash="c0ffee", run_id="0123abcd", epoch=1, examples=3)
    with pytest.raises(CheckpointError, match="step-3 exists, and its values differ from those to save"):
        save(three, step=3, variables={"w": np.zeros((64,))}, meta=meta)
    np.testing.assert_array_equal(load(three / "step-3").variables["w"], 3.0)


def test_damaged_checkpoint_of_the_same_step_is_replaced(three: Path, caplog: pytest.LogCaptureFixture) -> None:
    (three / "step-3" / "manifest.json").write_bytes(b"{}")
    commit(three, 3)
    assert "writing a checkpoint again" in caplog.text
    require_whole(three, {3})
    commit(three, 4)
    assert names(three) == ["step-2", "step-3", "step-4"]


def test_leftovers_of_earlier_epochs_are_removed(three: Path) -> None:
    (three / "step-4.tmp-1").mkdir()
    (three / "step-4.tmp-1" / "variables.safetensors").write_bytes(b"half")
    (three / "step-1.discarded-2").mkdir()
    (three / "notes").mkdir()
    commit(three, 4, epoch=3)
    assert names(three) == ["notes", "step-2", "step-3", "step-4"]


def test_a_save_is_refused_after_a_later_epoch_began(three: Path) -> None:
    (three / "step-9.tmp-8").mkdir()
    with pytest.raises(DirectoryInUseError, match=r"step-9\.tmp-8 was written by a later start .*\(epoch 7\)"):
        commit(three, 4, epoch=7)
    assert "step-9.tmp-8" in names(three)
    assert "step-4" not in names(three)


def test_directory_that_cannot_be_created_is_a_resource_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match=r"cannot write checkpoint .*file/checkpoints/step-1: Not a directory"):
        commit(tmp_path / "file" / "checkpoints", 1)


def test_value_that_is_not_finite_is_not_written(three: Path) -> None:
    weights = np.ones((2, 3), np.float32)
    weights[1, 2] = np.nan
    meta = CheckpointMeta(config_hash="c0ffee", run_id="0123abcd", epoch=1, examples=4)
    with pytest.raises(NumericError, match=r"variable conv/w: 1 of 6 values .* nan at index \(1, 2\)"):
        save(three, step=4, variables={"bias": np.ones(3), "conv/w": weights}, meta=meta)
    assert names(three) == ["step-1", "step-2", "step-3"]


def test_the_best_checkpoint_is_kept_until_a_better_one_is_saved(tmp_path: Path) -> None:
    for step, best in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 2), (6, 2)):
        commit(tmp_path, step, best=best)
    assert names(tmp_path) == ["step-2", "step-4", "step-5", "step-6"]
    commit(tmp_path, 7, best=7)
    assert names(tmp_path) == ["step-5", "step-6", "step-7"]
    commit(tmp_path, 8, best=6)
    assert names(tmp_path) == ["step-6", "step-7", "step-8"], "the best checkpoint is one of the newest three"
