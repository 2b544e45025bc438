"""The cache of compiled code: damaged files, files and folders of other users, concurrent writers, and the limit."""

import errno
import logging
import multiprocessing
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from runner.system.code_cache import CodeCache, code_name

NAME, OTHER = code_name("a"), code_name("b")
CODE = bytes(range(256)) * 8

Damage = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder whose cache contains CODE."""
    path = tmp_path / ".cache" / "runner" / "code"
    CodeCache(path).write(NAME, CODE)
    return path


def test_another_object_reads_the_code_and_other_users_have_no_access(folder: Path) -> None:
    assert CodeCache(folder).read(NAME) == CODE
    assert CodeCache(folder).read(OTHER) is None
    created = (folder.parents[1], folder.parents[0], folder, folder / NAME)
    assert [path.stat().st_mode & 0o077 for path in created] == [0, 0, 0, 0]
    assert os.listdir(folder) == [NAME]


def test_names_differ_if_any_part_differs() -> None:
    assert len({code_name(*parts) for parts in ["ab", "ba", ["ab"], ["a", "b", ""]]}) == 4


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(position: int, path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def _take_other_name(path: Path) -> None:
    CodeCache(path.parent).write(OTHER, b"other code")
    path.with_name(OTHER).replace(path)


def _link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("moved")))


def _become_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Damage] = {
    "empty": lambda path: path.write_bytes(b""),
    "shorter than its digest": lambda path: path.write_bytes(path.read_bytes()[:10]),
    "truncated": _truncate,
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "first byte flipped": lambda path: _flip(0, path),
    "last byte flipped": lambda path: _flip(-1, path),
    "code of another name": _take_other_name,
    "writable by the group": lambda path: path.chmod(0o620),
    "writable by others": lambda path: path.chmod(0o602),
    "a link": _link,
    "a FIFO": _become_fifo,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_file_that_could_hold_other_code_is_not_read_but_replaced(damage: Damage, folder: Path) -> None:
    damage(folder / NAME)
    cache = CodeCache(folder)
    assert cache.read(NAME) is None
    cache.write(NAME, CODE)
    assert cache.read(NAME) == CODE
    assert not (folder / NAME).is_symlink()


def _become_file(path: Path) -> None:
    (path / NAME).unlink()
    path.rmdir()
    path.touch()


def _lose_home(path: Path) -> None:
    path.parents[2].rename(path.parents[2].with_name("moved"))


UNUSABLE: dict[str, tuple[Damage, str]] = {
    "open to others": (lambda path: path.chmod(0o777), "mode 0777 of user .*, expected 0700 of user .*; delete"),
    "open to the group": (lambda path: path.chmod(0o740), "mode 0740 of user .*, expected 0700 of user .*; delete"),
    "a link": (_link, "Not a directory"),
    "a file": (_become_file, "Not a directory"),
    "without a home": (_lose_home, "No such file or directory"),
}


@pytest.mark.parametrize(("damage", "reason"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_folder_is_logged_once_and_neither_read_nor_written(
    damage: Damage, reason: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(folder)
    before = sorted(folder.parents[2].parent.rglob("*"))
    cache = CodeCache(folder)
    with caplog.at_level(logging.DEBUG):
        for name in (NAME, OTHER):
            assert cache.read(name) is None
            cache.write(name, CODE)
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert re.match(f"the cache of compiled code was not used: .*{reason}", record.getMessage())
    assert sorted(folder.parents[2].parent.rglob("*")) == before


@pytest.mark.parametrize("path", [Path(), Path(NAME)], ids=["folder", "file"])
def test_the_folder_and_the_files_of_another_user_are_not_used(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fstat, foreign = os.fstat, (folder / path).stat().st_ino

    def disguised(descriptor: int) -> os.stat_result:
        status = list(fstat(descriptor))
        return os.stat_result([*status[:4], status[4] + (status[1] == foreign), *status[5:]])

    monkeypatch.setattr(os, "fstat", disguised)
    assert CodeCache(folder).read(NAME) is None
    monkeypatch.undo()
    assert CodeCache(folder).read(NAME) == CODE


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_leaves_no_part_of_a_file(
    code: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    cache = CodeCache(folder)
    cache.write(OTHER, CODE)
    assert os.listdir(folder) == [NAME]
    assert cache.read(NAME) == CODE


def test_the_least_recently_used_files_are_removed(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path, limit=4 * (len(CODE) + 32))
    names = [code_name(str(number)) for number in range(6)]
    for second, name in enumerate(names[:4]):
        cache.write(name, CODE)
        os.utime(tmp_path / name, (second, second))
    assert cache.read(names[0]) == CODE
    cache.write(names[4], CODE)
    cache.write(names[5], CODE)
    assert {path.name for path in tmp_path.iterdir()} == {names[0], *names[3:]}


def test_a_file_that_another_process_removes_at_the_same_time_is_not_an_error(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def list_and_remove(descriptor: int) -> nullcontext[list[os.DirEntry[str]]]:
        entries = list(scandir(descriptor))
        (folder / NAME).unlink()
        return nullcontext(entries)

    monkeypatch.setattr(os, "scandir", list_and_remove)
    with caplog.at_level(logging.DEBUG):
        CodeCache(folder).write(OTHER, CODE)
    assert caplog.records == []
    assert CodeCache(folder).read(OTHER) == CODE


CODES = {code_name(str(number)): bytes([number]) * 100_000 for number in range(4)}


def write_and_read(folder: Path, limit: int) -> None:
    """Write and read CODES a few times; code that is found must be whole, and nothing fails if all of it has room."""

    def refuse(record: logging.LogRecord) -> bool:
        raise AssertionError(record.getMessage())

    has_room = limit >= 8 * 100_000
    if has_room:
        logging.getLogger(CodeCache.__module__).addFilter(refuse)
    cache = CodeCache(folder, logging.ERROR, limit)
    for _ in range(20):
        for name, code in CODES.items():
            cache.write(name, code)
            assert cache.read(name) in (code, code if has_room else None)


@pytest.mark.parametrize(("limit", "files"), [(1 << 20, 4), (300_000, 2)])
def test_processes_write_the_same_files_at_the_same_time(limit: int, files: int, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_and_read, args=(tmp_path, limit)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(os.listdir(tmp_path)) == files
