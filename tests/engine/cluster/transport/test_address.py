from pathlib import Path

import pytest

from runner.engine.cluster.transport.address import (
    MAX_SOCKET_PATH,
    check_bind_address,
    inbox_address,
    inbox_path,
    sibling_address,
)
from runner.engine.cluster.transport.private_directory import PrivateDirectory
from runner.errors import ConfigError, ResourceError, SecurityError


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
def test_other_addresses_have_no_path(address: str) -> None:
    with pytest.raises(ConfigError, match="expected ipc:// and an absolute path"):
        inbox_path(address)


def test_private_ipc_and_loopback_are_allowed(private_directory: PrivateDirectory) -> None:
    check_bind_address(inbox_address(private_directory.path, "master-0"))
    check_bind_address("tcp://127.0.0.1:5555")
    check_bind_address("tcp://[::1]:5555")


@pytest.mark.parametrize(
    "address",
    [
        "tcp://0.0.0.0:5555",
        "tcp://*:5555",
        "tcp://192.168.1.2:5555",
        "tcp://localhost:5555",
        "tcp://eth0:5555",
        "tcp://[::]:5555",
        "inproc://x",
        "pgm://127.0.0.1:5555",
    ],
)
def test_public_address_is_refused(address: str) -> None:
    with pytest.raises(SecurityError, match=r"refused to listen on .*: beyond this host a socket needs CURVE"):
        check_bind_address(address)


def test_ipc_in_a_shared_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(SecurityError, match="mode 0755"):
        check_bind_address(inbox_address(tmp_path, "master-0"))
