import logging
import re
import tempfile
from pathlib import Path

import pytest

from runner.engine.cluster.transport import private_directory as module
from runner.engine.cluster.transport.private_directory import (
    inbox_address,
    inbox_path,
    interface_towards,
    own_address,
    private_directory,
)
from runner.errors import ClusterError, ConfigError, ResourceError, SecurityError


def test_directory_is_private_and_removed_on_exit(tmp_path: Path) -> None:
    with private_directory(tmp_path) as directory:
        assert directory.stat().st_mode & 0o777 == 0o700
        module.check_private(directory)
        (directory / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_directories_of_living_runs_are_kept(tmp_path: Path) -> None:
    with private_directory(tmp_path) as one, private_directory(tmp_path) as two:
        assert one != two
        module.remove_abandoned(tmp_path)
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
    module.remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == [link, other]


def test_directory_that_another_run_removes_first_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned = [tmp_path / f"runner-{number:016x}" for number in range(2)]
    for path in abandoned:
        path.mkdir()
    lock = module._lock

    def remove_the_other(path: Path) -> int | None:
        abandoned[path == abandoned[0]].rmdir()
        return lock(path)

    monkeypatch.setattr(module, "_lock", remove_the_other)
    module.remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_directory_that_is_missing_a_link_or_open_to_other_users_is_refused(tmp_path: Path) -> None:
    directory, link = tmp_path / "directory", tmp_path / "link"
    directory.mkdir()
    link.symlink_to(directory)
    for mode in (0o755, 0o710, 0o701):
        directory.chmod(mode)
        with pytest.raises(SecurityError, match=f"mode 0{mode:o} of user .*, expected 0700"):
            module.check_private(directory)
    directory.chmod(0o700)
    with pytest.raises(SecurityError, match="not a symbolic link"):
        module.check_private(link)
    directory.rmdir()
    with pytest.raises(ClusterError, match=r"directory: No such file .*; the directory of a run is removed when"):
        module.check_private(directory)


def test_unusable_parent_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot create a private directory for sockets .* No such file"):
        private_directory(tmp_path / "missing").__enter__()


def test_missing_shared_memory_falls_back_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path / "missing")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with caplog.at_level(logging.WARNING), private_directory() as directory:
        assert directory.parent == tmp_path
    assert "is missing or not writable: workers exchange tensors through files in" in caplog.text


def test_inboxes_of_a_run_share_a_directory() -> None:
    address = inbox_address(Path("/dev/shm/run"), "master-0")
    assert address == "ipc:///dev/shm/run/master-0"
    assert module.sibling_address(address, "worker-1") == "ipc:///dev/shm/run/worker-1"
    assert inbox_path(address) == Path("/dev/shm/run/master-0")


def test_length_of_a_socket_path_is_limited_in_bytes() -> None:
    fits = Path("/") / ("x" * (module.MAX_SOCKET_PATH - len("//master-0")))
    inbox_address(fits, "master-0")
    with pytest.raises(ResourceError, match=r"has 108 bytes, expected at most 107: use .* a shorter name"):
        inbox_address(fits, "master-10")
    with pytest.raises(ResourceError, match="at most 107"):
        inbox_address(Path("/") / ("é" * 60), "master-0")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "ipc://relative", "ipc://@abstract", ""])
def test_addresses_of_other_transports_have_no_path(address: str) -> None:
    with pytest.raises(ConfigError, match="expected ipc:// and an absolute path"):
        inbox_path(address)


def test_private_ipc_and_addresses_with_keys_are_allowed(directory: Path) -> None:
    module.check_bind_address(inbox_address(directory, "master-0"), has_keys=False)
    for host in ("127.0.0.1", "192.168.1.2", "[::1]"):
        module.check_bind_address(f"tcp://{host}:5555", has_keys=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "192.168.1.2", "0.0.0.0", "*", "localhost"])
def test_without_keys_nothing_listens_beyond_the_private_directory(host: str) -> None:
    with pytest.raises(SecurityError, match=r"refused to listen on .* without CURVE keys"):
        module.check_bind_address(f"tcp://{host}:5555", has_keys=False)


@pytest.mark.parametrize(
    "address",
    [
        *(f"tcp://{host}:5555" for host in ("0.0.0.0", "*", "localhost", "eth0", "[::]")),
        *("tcp://127.0.0.1", "inproc://x", "pgm://127.0.0.1:5555"),
    ],
)
def test_addresses_other_than_those_of_one_interface_are_refused(address: str) -> None:
    with pytest.raises(SecurityError, match=r"refused to listen on .*: expected tcp://IP:PORT"):
        module.check_bind_address(address, has_keys=True)


def test_own_address_is_on_the_interface_that_leads_to_the_master(directory: Path) -> None:
    assert own_address("tcp://127.0.0.1:5555", "worker-1") == "tcp://127.0.0.1:*"
    assert own_address("tcp://localhost:5555", "worker-1").startswith("tcp://")
    assert own_address(inbox_address(directory, "master-0"), "worker-1") == inbox_address(directory, "worker-1")
    assert interface_towards(["127.0.0.1"]) == "tcp://127.0.0.1:*"
    for host in ("no.such.host.invalid", "node..cluster"):
        with pytest.raises(ClusterError, match=f"worker-1 cannot reach tcp://{host}:5555"):
            own_address(f"tcp://{host}:5555", "worker-1")
        with pytest.raises(ResourceError, match=f"no network interface leads to 127.0.0.1, {host}: .*; set cluster"):
            interface_towards(["127.0.0.1", host])


@pytest.mark.parametrize(
    "address",
    [
        *(f"tcp://{place}" for place in ("127.0.0.1:*", "*:5555", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536")),
        *("tcp://::1:5555", "127.0.0.1:5555", "udp://127.0.0.1:5555", ""),
    ],
)
def test_address_to_which_no_process_can_connect_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=f"worker-1 .* at '{re.escape(address)}': expected tcp://HOST:PORT"):
        own_address(address, "worker-1")


def test_ipc_in_a_shared_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(SecurityError, match="mode 0755"):
        module.check_bind_address(inbox_address(tmp_path, "master-0"), has_keys=False)
