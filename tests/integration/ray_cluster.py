"""A cluster of Ray with nodes on this machine, for tests."""

import contextlib
import importlib.util
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.integration.command import LIMIT_S, lacking, running
from tests.integration.slurm import free_ports

RAY = str(Path(sys.executable).with_name("ray"))
START = (RAY, "start", "--block", "--num-cpus=2", "--object-store-memory=80000000")
HEAD = ("--head", "--include-dashboard=false")
STARTED = "Ray runtime started"


def require_ray() -> None:
    """Skip the test if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        lacking("ray", "pip install 'runner-dataflow[ray]'")


def token_of(folder: Path) -> dict[str, str]:
    """Return the variables with which Ray requires a new token, which is written to ``folder``."""
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}


@contextlib.contextmanager
def ray_cluster(nodes: int) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Start Ray with some nodes of two CPUs each; yield its HOST:PORT and the variables with which commands find it."""
    require_ray()
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as name, contextlib.ExitStack() as stack:
        folder = Path(name)  # the paths of Ray's sockets must be short
        address = f"127.0.0.1:{free_ports(1)[0]}"
        environment = token_of(folder)
        for number in range(nodes):
            place = [*HEAD, f"--port={address.partition(':')[2]}", f"--temp-dir={folder}"]
            argv = [*(place if number == 0 else [f"--address={address}"]), "--node-ip-address=127.0.0.1"]
            stack.enter_context(_node(argv, folder / f"node-{number}", environment))
        yield address, environment


@contextlib.contextmanager
def _node(argv: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with running([*START, *argv], log, environment) as process:
        deadline = time.monotonic() + LIMIT_S
        while STARTED not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield
