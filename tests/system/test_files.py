"""Durable writes and reads that follow no link."""

import errno
import os
from pathlib import Path

import pytest

from runner.errors import DataError, SecurityError
from runner.system.files import create_directory, open_regular, read_regular, replace_durably, write_durably


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_written_file_reads_back(tmp_path: Path) -> None:
    write_durably(tmp_path / "file", b"content")
    write_durably(tmp_path / "empty", b"")
    assert read_regular(tmp_path / "file", limit=7) == b"content"
    assert read_regular(tmp_path / "empty", limit=7) == b""


def test_file_over_the_limit_comes_back_one_byte_too_long(tmp_path: Path) -> None:
    write_durably(tmp_path / "file", b"content")
    assert read_regular(tmp_path / "file", limit=3) == b"cont"


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    write_durably(tmp_path / "file", b"old")
    with pytest.raises(FileExistsError):
        write_durably(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("name", ["link", "pipe", "folder"])
def test_only_regular_files_are_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"secret")
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = open_descriptors()
    with pytest.raises(SecurityError, match=f"{name} is (a symbolic link|not a regular file)"):
        read_regular(tmp_path / name, limit=100)
    assert open_descriptors() == before


def test_write_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        write_durably(tmp_path / "link", b"content")
    assert not (tmp_path / "target").exists()


def test_replacing_takes_effect_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_durably(path, b"old")
    for call in ("posix_fallocate", "fsync", "rename"):
        with monkeypatch.context() as patch:

            def failing(*arguments: object) -> None:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

            patch.setattr(os, call, failing)
            with pytest.raises(OSError, match="Input/output error"):
                replace_durably(path, b"new")
        assert path.read_bytes() == b"old"
    replace_durably(path, b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"new"


def test_directory_is_created_with_its_parents(tmp_path: Path) -> None:
    create_directory(tmp_path / "a" / "b")
    create_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="Not a directory"):
        create_directory(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "kind"), [("pipe", "a FIFO"), ("link_to_pipe", "a FIFO"), ("folder", "a folder"), ("null", "a device")]
)
def test_a_file_that_may_never_end_is_not_opened(name: str, kind: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link_to_pipe").symlink_to("pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "null").symlink_to("/dev/null")
    before = open_descriptors()
    with pytest.raises(DataError, match=rf"{name} is {kind}: expected a regular file$"):
        open_regular(tmp_path / name)
    assert open_descriptors() == before


def test_a_regular_file_is_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"content")
    (tmp_path / "link").symlink_to("target")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"content"
