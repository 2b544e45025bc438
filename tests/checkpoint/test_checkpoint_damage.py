"""Damaged checkpoints are refused with the reason and never returned. ``find`` returns the right checkpoint."""

import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as save_safetensors

from runner.checkpoint import BEST, NEWEST, find, load, newest, save
from runner.errors import CheckpointError, SecurityError
from tests.checkpoint.conftest import FILES, META, VARIABLES
from tests.checkpoint.test_checkpoint_commit import commit


@pytest.fixture(scope="module")
def shared_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one checkpoint for tests that damage and restore it many times."""
    return save(tmp_path_factory.mktemp("checkpoints"), step=3, variables=VARIABLES, meta=META)


@pytest.mark.parametrize("file", FILES)
@settings(max_examples=100)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7) | st.none())
def test_any_flipped_bit_or_cut_is_found(shared_checkpoint: Path, file: str, position: int, bit: int | None) -> None:
    """If ``bit`` is None, the file is truncated at the position."""
    path = shared_checkpoint / file
    original = path.read_bytes()
    damaged = bytearray(original)
    position %= len(damaged)
    if bit is None:
        del damaged[position:]
    else:
        damaged[position] ^= 1 << bit
    path.write_bytes(damaged)
    try:
        with pytest.raises(CheckpointError):
            load(shared_checkpoint)
    finally:
        path.write_bytes(original)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("manifest.json", lambda raw: raw + b"\n", "the manifest is damaged: its content does not match"),
        ("manifest.json", lambda raw: raw.replace(b"64", b"65", 1), "does not match its own checksum"),
        ("manifest.json", lambda raw: raw[:-20], "the manifest is damaged: not JSON"),
        ("manifest.json", lambda raw: b"[" * 100_000, "the manifest is damaged: not JSON"),
        ("manifest.json", lambda raw: b"[]", "the manifest is damaged: format_version: None, expected 1"),
        ("manifest.json", lambda raw: b" " * 8_000_001, "the manifest is damaged: exceeds the limit of 8000000 bytes"),
        ("variables.safetensors", lambda raw: raw + b"x", "is longer than the 1"),
        ("variables.safetensors", lambda raw: raw[:-1], "is shorter than the 1"),
        ("variables.safetensors", lambda raw: raw[:-1] + b"x", "its SHA-256 is .*, the manifest has"),
    ],
)
def test_the_damage_is_named(checkpoint: Path, file: str, damage: Callable[[bytes], bytes], message: str) -> None:
    path = checkpoint / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=f"checkpoints/step-3: .*{message}"):
        load(checkpoint)


@pytest.mark.parametrize("file", FILES)
def test_the_error_names_a_missing_file(checkpoint: Path, file: str) -> None:
    (checkpoint / file).unlink()
    with pytest.raises(CheckpointError, match=f"step-3: cannot be read: No such file or directory .{file}"):
        load(checkpoint)


def test_newest_skips_damaged_checkpoints_with_a_warning(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = checkpoint.parent
    for step in (4, 5, 6, 7):
        save(directory, step=step, variables=VARIABLES, meta=META, keep=9)
    (directory / "step-7" / "variables.safetensors").write_bytes(b"")
    (directory / "step-6" / "manifest.json").unlink()
    shutil.rmtree(directory / "step-5")
    (directory / "step-5").symlink_to(directory / "step-4")
    assert newest(directory) == directory / "step-4"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 3
    assert "step-7: variables.safetensors is damaged: it is shorter" in warnings[0]
    assert "step-6: cannot be read: No such file" in warnings[1]
    assert "step-5: is a symbolic link" in warnings[2]


def test_a_renamed_checkpoint_loads_unless_its_name_has_another_step(checkpoint: Path) -> None:
    renamed = checkpoint.rename(checkpoint.with_name("best"))
    assert load(renamed).step == 3
    with pytest.raises(CheckpointError, match="the manifest is for step 3, but the directory is named"):
        load(renamed.rename(checkpoint.with_name("step-9")))


@pytest.mark.parametrize("file", FILES)
def test_a_symbolic_link_inside_a_checkpoint_is_refused(checkpoint: Path, file: str) -> None:
    target = checkpoint.parent / "elsewhere"
    (checkpoint / file).rename(target)
    (checkpoint / file).symlink_to(target)
    with pytest.raises(SecurityError, match=f"step-3: {file} is a symbolic link"):
        load(checkpoint)


def test_symbolic_link_to_a_checkpoint_is_refused(checkpoint: Path) -> None:
    link = checkpoint.with_name("step-9")
    link.symlink_to(checkpoint)
    with pytest.raises(SecurityError, match="step-9: is a symbolic link; expected a real directory"):
        load(link)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("file", FILES)
def test_special_file_is_refused_without_waiting(checkpoint: Path, file: str, make: Callable[[Path], None]) -> None:
    (checkpoint / file).unlink()
    make(checkpoint / file)
    with pytest.raises(SecurityError, match=f"{file} is not a regular file"):
        load(checkpoint)


def test_a_missing_checkpoint_and_a_file_in_its_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such checkpoint; expected a directory step-N"):
        load(tmp_path / "step-1")
    (tmp_path / "step-1").write_bytes(save_safetensors(VARIABLES))
    with pytest.raises(CheckpointError, match=r"is a file; expected a directory with manifest\.json"):
        load(tmp_path / "step-1")


# ``find``, which returns the checkpoint that a path refers to.


def run_with(folder: Path, *steps: int, best: int | None = None) -> Path:
    """Return a run directory with checkpoints of these steps. The last checkpoint names ``best`` as the best step."""
    for step in steps:
        commit(folder / "checkpoints", step, best=best if step == steps[-1] else None)
    return folder


@pytest.mark.parametrize(
    ("best", "which", "expected"),
    [(2, None, 2), (2, BEST, 2), (2, NEWEST, 3), (3, BEST, 3), (None, None, 3), (None, NEWEST, 3)],
)
@pytest.mark.parametrize("inside", ["", "checkpoints"])
def test_a_run_provides_its_best_or_newest_checkpoint(
    tmp_path: Path, best: int | None, which: str | None, expected: int, inside: str
) -> None:
    run = run_with(tmp_path / "run", 1, 2, 3, best=best)
    assert find(run / inside, which) == run / "checkpoints" / f"step-{expected}"


def test_a_path_of_a_checkpoint_with_any_name_is_accepted(tmp_path: Path) -> None:
    path = commit(tmp_path, 1)
    assert find(path) == path
    renamed = path.rename(tmp_path / "mine")
    assert find(renamed) == renamed
    with pytest.raises(CheckpointError, match=r"mine is a checkpoint: 'best' needs the directory of its run"):
        find(renamed, BEST)


@pytest.mark.parametrize(
    ("best", "fault"),
    [
        (3, "the best checkpoint, step-3, no longer exists"),
        (4, r"best checkpoint, step-4, is unusable \(.*is damaged: it is shorter than the \d+ bytes in the manifest\)"),
    ],
)
def test_an_unusable_best_is_replaced(best: int, fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = run_with(tmp_path, 4, 5, best=best)
    (run / "checkpoints" / "step-4" / "variables.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=rf"{fault}; only runs with .* keep it.*Use 'newest'"):
        find(run, BEST)
    with caplog.at_level(logging.WARNING):
        assert find(run).name == "step-5"
    assert re.search(f"{fault}; using step-5", caplog.text)


def test_requesting_the_best_checkpoint_of_a_run_without_one_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no best checkpoint; only runs with checkpoint\.keep_best=true keep it"):
        find(run_with(tmp_path, 1), BEST)


@pytest.mark.parametrize(
    ("folder", "reported"),
    [
        ("", "no usable checkpoint; expected a directory step-N"),
        ("absent", "absent: no such directory; expected the directory of a run"),
    ],
)
def test_a_path_without_checkpoints_is_refused(tmp_path: Path, folder: str, reported: str) -> None:
    with pytest.raises(CheckpointError, match=reported):
        find(tmp_path / folder)
