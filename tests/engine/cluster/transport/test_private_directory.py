import logging
import os
import tempfile
from pathlib import Path

import pytest

from runner.engine.cluster.transport import private_directory as module
from runner.engine.cluster.transport.private_directory import (
    MAX_SOCKET_PATH,
    check_bind_address,
    check_private,
    inbox_address,
    inbox_path,
    new_token,
    private_directory,
    read_token,
    remove_abandoned,
    sibling_address,
    write_token,
)
from runner.errors import ConfigError, ResourceError, SecurityError


def test_directory_is_private_and_removed_on_exit(tmp_path: Path) -> None:
    with private_directory(tmp_path) as directory:
        assert directory.stat().st_mode & 0o777 == 0o700
        check_private(directory)
        (directory / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_directories_of_living_runs_are_kept(tmp_path: Path) -> None:
    with private_directory(tmp_path) as one, private_directory(tmp_path) as two:
        assert one != two
        remove_abandoned(tmp_path)
        assert one.exists()
        assert two.exists()


def test_only_abandoned_directories_of_runs_are_removed(tmp_path: Path) -> None:
    abandoned = tmp_path / "runner-0123456789abcdef"
    abandoned.mkdir()
    (abandoned / "worker-0").write_text("a socket, say")
    other = tmp_path / "runner-notes"
    other.mkdir()
    link = tmp_path / "runner-fedcba9876543210"
    link.symlink_to(other)
    remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == [link, other]


def test_directory_that_is_a_link_or_open_to_other_users_is_refused(tmp_path: Path) -> None:
    directory, link = tmp_path / "directory", tmp_path / "link"
    directory.mkdir()
    link.symlink_to(directory)
    for mode in (0o755, 0o710, 0o701):
        directory.chmod(mode)
        with pytest.raises(SecurityError, match=f"mode 0{mode:o} of user .*, expected 0700"):
            check_private(directory)
    directory.chmod(0o700)
    with pytest.raises(SecurityError, match="not a symbolic link"):
        check_private(link)


def test_unusable_parent_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"no private directory for sockets .* No such file"):
        private_directory(tmp_path / "missing").__enter__()


def test_missing_shared_memory_falls_back_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path / "missing")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with caplog.at_level(logging.WARNING), private_directory() as directory:
        assert directory.parent == tmp_path
    assert "cannot be used: tensors between workers go through files in" in caplog.text


def test_token_is_read_once(tmp_path: Path) -> None:
    token = new_token()
    path = write_token(tmp_path, "worker-0", token)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token(path) == token
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SecurityError, match="No such file or directory; each token file can be read once"):
        read_token(path)


def test_tokens_differ_and_no_file_is_overwritten(tmp_path: Path) -> None:
    assert new_token() != new_token()
    write_token(tmp_path, "worker-0", new_token())
    with pytest.raises(FileExistsError):
        write_token(tmp_path, "worker-0", new_token())


def test_token_file_of_another_kind_or_mode_is_refused(tmp_path: Path) -> None:
    path, link, pipe = write_token(tmp_path, "worker-0", new_token()), tmp_path / "link", tmp_path / "pipe"
    path.chmod(0o640)
    link.symlink_to(path)
    os.mkfifo(pipe, 0o600)
    for file, expected in (
        (path, r"mode 0640 of user .*, expected a regular file with mode 0600"),
        (link, "token file"),
        (pipe, "expected a regular file"),
    ):
        with pytest.raises(SecurityError, match=expected):
            read_token(file)


@pytest.mark.parametrize("content", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 63 + "\n"])
def test_malformed_token_is_refused(tmp_path: Path, content: str) -> None:
    path = write_token(tmp_path, "worker-0", content)
    with pytest.raises(SecurityError, match="expected 64 hexadecimal digits and nothing else"):
        read_token(path)


def test_inboxes_of_a_run_share_a_directory() -> None:
    address = inbox_address(Path("/dev/shm/run"), "master-0")
    assert address == "ipc:///dev/shm/run/master-0"
    assert sibling_address(address, "worker-1") == "ipc:///dev/shm/run/worker-1"
    assert inbox_path(address) == Path("/dev/shm/run/master-0")


def test_length_of_a_socket_path_is_limited_in_bytes() -> None:
    fits = Path("/") / ("x" * (MAX_SOCKET_PATH - len("//master-0")))
    inbox_address(fits, "master-0")
    with pytest.raises(ResourceError, match=r"has 108 bytes, expected at most 107: use .* a shorter name"):
        inbox_address(fits, "master-10")
    with pytest.raises(ResourceError, match="at most 107"):
        inbox_address(Path("/") / ("é" * 60), "master-0")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "ipc://relative", "ipc://@abstract", ""])
def test_addresses_of_other_transports_have_no_path(address: str) -> None:
    with pytest.raises(ConfigError, match="expected ipc:// and an absolute path"):
        inbox_path(address)


def test_private_ipc_and_loopback_are_allowed(directory: Path) -> None:
    check_bind_address(inbox_address(directory, "master-0"))
    check_bind_address("tcp://127.0.0.1:5555")
    check_bind_address("tcp://[::1]:5555")


HOSTS = ("0.0.0.0", "*", "192.168.1.2", "localhost", "eth0", "[::]")


@pytest.mark.parametrize("address", [*(f"tcp://{host}:5555" for host in HOSTS), "inproc://x", "pgm://127.0.0.1:5555"])
def test_public_address_is_refused(address: str) -> None:
    with pytest.raises(SecurityError, match=r"refused to listen on .*: beyond this host a socket needs CURVE"):
        check_bind_address(address)


def test_ipc_in_a_shared_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(SecurityError, match="mode 0755"):
        check_bind_address(inbox_address(tmp_path, "master-0"))
