"""Downloading archives and reading them without trusting them."""

import gzip
import io
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.data import archive
from runner.data.archive import apt_download, download, gunzip, npm_pack, read_ar_member, read_tar
from runner.errors import DataError


def test_tar_members_are_found_with_and_without_leading_dot(make_tar, member):
    data = make_tar([member("./usr/a", b"first"), member("usr/b", b"second")], "w:xz")
    assert read_tar(io.BytesIO(data), {"usr/a": 5, "usr/b": 6}) == {"usr/a": b"first", "usr/b": b"second"}


def test_tar_bomb_is_refused_before_it_is_unpacked(make_tar, member, monkeypatch):
    monkeypatch.setattr(archive, "UNPACKED_LIMIT", 1000)
    data = make_tar([member("filler", bytes(900)), member("more", bytes(101)), member("wanted", b"")])
    with pytest.raises(DataError, match="unpacks to more than 1000 bytes"):
        read_tar(io.BytesIO(data), {"wanted": 10})


def test_file_that_is_no_tar_is_refused(tmp_path: Path):
    (tmp_path / "a.tgz").write_bytes(b"<html>sign in first</html>")
    with pytest.raises(DataError, match=r"a\.tgz is damaged"):
        read_tar(tmp_path / "a.tgz", {})


def test_gunzip_gives_the_contents():
    assert gunzip(gzip.compress(b"abc" * 99, mtime=0), 297, "x.gz") == b"abc" * 99


def test_gunzip_stops_at_the_limit():
    bomb = gzip.compress(bytes(10_000_000), mtime=0)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"x\.gz decompresses to more than 1000 bytes"):
            gunzip(bomb, 1000, "x.gz")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000, "the whole bomb was decompressed"


def test_gunzip_notices_a_cut():
    with pytest.raises(DataError, match=r"x\.gz is cut off after"):
        gunzip(gzip.compress(b"abc" * 99, mtime=0)[:-4], 297, "x.gz")


def test_gunzip_notices_damage():
    data = bytearray(gzip.compress(b"abc" * 99, mtime=0))
    data[-8] ^= 1  # the checksum inside the format
    with pytest.raises(DataError, match=r"x\.gz is damaged: .*incorrect data check"):
        gunzip(bytes(data), 297, "x.gz")


def test_ar_member_after_one_of_odd_length(tmp_path: Path, make_ar):
    (tmp_path / "a.deb").write_bytes(make_ar({"debian-binary": b"2.0", "data.tar.xz": b"payload"}))
    assert read_ar_member(tmp_path / "a.deb", "data.tar.xz") == b"payload"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"PK" + data, "is damaged: it begins with b'PK"),
        (lambda data: data[:-4], "is cut off after 136 bytes"),
        (
            lambda data: data.replace(b"7         `", b"-7        `"),
            "is damaged: no member header at byte 72",
        ),
        (lambda data: data.replace(b"data.tar.xz", b"data.tar.gz"), r"lacks data\.tar\.xz"),
    ],
)
def test_ar_files_that_cannot_be_used(tmp_path: Path, make_ar, damage: Callable[[bytes], bytes], message: str):
    data = make_ar({"debian-binary": b"2.0\n", "data.tar.xz": b"payload"})
    (tmp_path / "a.deb").write_bytes(damage(data))
    with pytest.raises(DataError, match=rf"a\.deb {message}"):
        read_ar_member(tmp_path / "a.deb", "data.tar.xz")


def _install(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``script`` the only command, under ``name``."""
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(folder))


def test_download_stores_the_response(tmp_path: Path):
    (tmp_path / "source").write_bytes(b"x" * 3_000_000)
    download((tmp_path / "source").as_uri(), tmp_path / "target", 3_000_000)
    assert (tmp_path / "target").read_bytes() == b"x" * 3_000_000


def test_download_stops_at_the_expected_size(tmp_path: Path):
    (tmp_path / "source").write_bytes(bytes(101))
    with pytest.raises(DataError, match="sends more than 100 bytes, the expected size"):
        download((tmp_path / "source").as_uri(), tmp_path / "target", 100)


def test_download_names_an_address_that_does_not_answer(tmp_path: Path):
    # No process listens on port 1.
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:1/x cannot be read: .*refused"):
        download("http://127.0.0.1:1/x", tmp_path / "target", 100)


def test_download_gives_up_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "source").write_bytes(bytes(100))
    monkeypatch.setattr(archive, "_TOTAL_SECONDS", -1.0)
    with pytest.raises(DataError, match="sent only 100 bytes in"):
        download((tmp_path / "source").as_uri(), tmp_path / "target", 100)


def test_npm_packs_without_scripts_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _install(tmp_path / "bin", "npm", 'echo "$@" > asked', monkeypatch)
    npm_pack("some-data@1.2.3", tmp_path)
    assert (tmp_path / "asked").read_text().split() == [
        "pack",
        "some-data@1.2.3",
        "--silent",
        "--ignore-scripts",
    ]


def test_apt_downloads_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _install(tmp_path / "bin", "apt-get", 'echo "$@" > asked', monkeypatch)
    apt_download("some-data=1.2-3", tmp_path)
    assert (tmp_path / "asked").read_text().split() == ["--quiet=2", "download", "some-data=1.2-3"]


def test_a_client_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _install(tmp_path / "bin", "npm", "echo 'no such package' >&2; exit 7", monkeypatch)
    with pytest.raises(DataError, match=r"npm pack gone@1 .* ended with exit code 7: 'no such package'"):
        npm_pack("gone@1", tmp_path)


def test_a_missing_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="the command 'npm' is not installed"):
        npm_pack("some-data@1.2.3", tmp_path)


def test_a_client_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # exec: the process that is killed is the one that holds the pipes.
    _install(tmp_path / "bin", "npm", "exec /bin/sleep 600", monkeypatch)
    monkeypatch.setattr(archive, "_TOTAL_SECONDS", 0.05)
    with pytest.raises(DataError, match=r"npm pack slow@1 .* took more than"):
        npm_pack("slow@1", tmp_path)
