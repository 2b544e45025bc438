"""Damaged checkpoints: refused with the reason, never returned."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as save_safetensors

from runner.checkpoint import load, newest, save
from runner.errors import CheckpointError, SecurityError
from tests.checkpoint.conftest import FILES, META, VARIABLES


@pytest.fixture(scope="module")
def shared_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint for tests that damage and restore it many times."""
    return save(tmp_path_factory.mktemp("checkpoints"), step=3, variables=VARIABLES, meta=META)


@pytest.mark.parametrize("file", FILES)
@settings(max_examples=50)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(shared_checkpoint: Path, file: str, position: int, bit: int) -> None:
    path = shared_checkpoint / file
    original = path.read_bytes()
    flipped = bytearray(original)
    flipped[position % len(flipped)] ^= 1 << bit
    path.write_bytes(flipped)
    try:
        with pytest.raises(CheckpointError):
            load(shared_checkpoint)
    finally:
        path.write_bytes(original)


@pytest.mark.parametrize("file", FILES)
@settings(max_examples=50)
@given(length=st.integers(0, 10**6))
def test_any_truncation_is_found(shared_checkpoint: Path, file: str, length: int) -> None:
    path = shared_checkpoint / file
    original = path.read_bytes()
    path.write_bytes(original[: length % len(original)])
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
        ("manifest.json", lambda raw: raw[:-20], "the manifest is damaged: no JSON"),
        ("manifest.json", lambda raw: b"[" * 100_000, "the manifest is damaged: no JSON"),
        ("manifest.json", lambda raw: b"[]", "the manifest is damaged: format_version: None, expected 1"),
        (
            "manifest.json",
            lambda raw: b" " * 1_000_001,
            "the manifest is damaged: more than 1000000 bytes",
        ),
        ("variables.safetensors", lambda raw: raw + b"x", "is longer than the 1"),
        ("variables.safetensors", lambda raw: raw[:-1], "is shorter than the 1"),
        ("variables.safetensors", lambda raw: raw[:-1] + b"x", "its SHA-256 is .*, the manifest has"),
    ],
)
def test_damage_is_named(checkpoint: Path, file: str, damage: Callable[[bytes], bytes], message: str) -> None:
    path = checkpoint / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=f"checkpoints/step-3: .*{message}"):
        load(checkpoint)


@pytest.mark.parametrize("file", FILES)
def test_missing_file_is_named(checkpoint: Path, file: str) -> None:
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


def test_newest_returns_none_when_all_are_damaged(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_bytes(b"{}")
    assert newest(checkpoint.parent) is None


def test_renamed_checkpoint_is_refused(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="the manifest has step 3, the name of the directory another"):
        load(checkpoint.rename(checkpoint.with_name("step-9")))


def test_a_renamed_checkpoint_loads(checkpoint: Path) -> None:
    assert load(checkpoint.rename(checkpoint.with_name("best"))).step == 3


@pytest.mark.parametrize("file", FILES)
def test_symbolic_link_inside_is_refused(checkpoint: Path, file: str) -> None:
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


def test_missing_checkpoint_and_file_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such checkpoint; expected a directory step-N"):
        load(tmp_path / "step-1")
    (tmp_path / "step-1").write_bytes(save_safetensors(VARIABLES))
    with pytest.raises(CheckpointError, match=r"is a file; expected a directory with manifest\.json"):
        load(tmp_path / "step-1")
