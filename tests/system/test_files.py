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
    assert read_regular(tmp_path / "file", limit=3) == b"cont", "one byte more than the limit"
    assert read_regular(tmp_path / "empty", limit=7) == b""


def test_neither_an_existing_file_nor_the_target_of_a_link_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError):
            write_durably(tmp_path / name, b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
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
    ("name", "kind", "read"),
    [
        ("pipe", "a FIFO", "is not a regular file"),
        ("link_to_pipe", "a FIFO", "is a symbolic link: expected a regular file"),
        ("folder", "a folder", "is not a regular file"),
        ("null", "a device", "is a symbolic link"),
    ],
)
def test_a_file_that_may_never_end_is_neither_opened_nor_read(name: str, kind: str, read: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link_to_pipe").symlink_to("pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "null").symlink_to("/dev/null")
    before = open_descriptors()
    with pytest.raises(DataError, match=rf"{name} is {kind}: expected a regular file$"):
        open_regular(tmp_path / name)
    with pytest.raises(SecurityError, match=f"{name} {read}"):
        read_regular(tmp_path / name, limit=100)
    assert open_descriptors() == before


def test_a_regular_file_is_opened_through_a_link_and_not_read_through_it(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"content")
    (tmp_path / "link").symlink_to("target")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"content"
    with pytest.raises(SecurityError, match="link is a symbolic link"):
        read_regular(tmp_path / "link", limit=100)
