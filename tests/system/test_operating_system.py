"""Memory of the machine, durable writes, reads that do not follow links, and orderly ends after signals."""

import errno
import os
import resource
import signal
from pathlib import Path

import psutil
import pytest

from runner.errors import DataError, Interrupted, SecurityError
from runner.system import files
from runner.system.files import create_directory, open_regular, read_regular, replace_durably, write_durably
from runner.system.machine import available_memory, bfloat16_flags, cpu_facts, process_room, usable_memory
from runner.system.shutdown import StopRequest, at_the_end


def test_the_lines_of_the_first_cpu_are_read(tmp_path: Path):
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: A CPU\nflags\t\t: avx2 amx_bf16\n\nmodel name\t: another\n")
    assert cpu_facts(info) == {"model name": "A CPU", "flags": "avx2 amx_bf16"}
    assert cpu_facts(tmp_path / "absent") == {}


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_either_set_of_bfloat16_instructions_is_enough(flag: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runner.system.machine.cpu_flags", lambda: frozenset({"avx2", flag}))
    assert bfloat16_flags() == [flag]


def test_memory_is_the_limit_of_the_container_or_that_of_the_machine(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    assert usable_memory((tmp_path / "absent", limit)) == 1 << 20
    limit.write_text("max\n")
    assert usable_memory((limit,)) == psutil.virtual_memory().total
    assert 0 < available_memory() <= usable_memory()


@pytest.mark.parametrize("limited", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_room_of_a_process_is_the_unused_part_of_a_limit(limited: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], resource.RLIM_INFINITY))
    assert process_room() is None
    limits[limited] = 1 << 50
    room = process_room()
    assert room is not None
    assert (1 << 50) - (1 << 45) < room < (1 << 50) - (1 << 20)
    limits[limited] = 1 << 20
    assert process_room() == 0


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


def test_replacing_takes_effect_immediately_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_content_and_name_of_a_replaced_file_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flush, rename = tmp_path / "file", os.fsync, os.rename
    calls: list[str] = []

    def noted_flush(descriptor: int) -> None:
        calls.append(f"flush {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        flush(descriptor)

    def noted_rename(old: Path, new: Path) -> None:
        calls.append(f"rename {old.name} {new.name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_flush)
    monkeypatch.setattr(os, "rename", noted_rename)
    replace_durably(path, b"new")
    assert calls == ["flush file.tmp", "rename file.tmp file", f"flush {tmp_path.name}"]


def test_directory_is_created_with_its_parents_and_their_names_are_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(files, "fsync_directory", flushed.append)
    create_directory(tmp_path / "a" / "b")
    create_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert flushed == [tmp_path, tmp_path / "a"]
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
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DataError, match=rf"{name} is {kind}: expected a regular file$"):
        open_regular(tmp_path / name)
    with pytest.raises(SecurityError, match=f"{name} {read}"):
        read_regular(tmp_path / name, limit=100)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_regular_file_is_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"content")
    (tmp_path / "link").symlink_to("target")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"content"


def test_the_final_action_receives_the_error_of_the_block_and_the_error_is_raised() -> None:
    received: list[BaseException | None] = []
    with at_the_end("noting", received.append):
        assert received == []
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), at_the_end("noting", received.append):
        raise error
    assert received == [None, error]


def failing(error: BaseException | None) -> None:
    raise OSError("no space")


def test_a_failure_of_the_final_action_is_raised_or_logged_after_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError, match="no space"), at_the_end("noting", failing):
        pass
    assert caplog.messages == []
    with pytest.raises(ZeroDivisionError), at_the_end("noting", failing):
        raise ZeroDivisionError
    assert caplog.messages == ["noting failed too, after ZeroDivisionError: no space"]


def test_the_first_signal_is_recorded_and_the_second_one_stops_immediately() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert stop.signum is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signal.SIGTERM
        with pytest.raises(Interrupted, match="second signal") as stopped:
            os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before
