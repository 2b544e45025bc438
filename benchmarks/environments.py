"""The peers' virtual environments, below ``.peers``: each library in one of its own, at a fixed version."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
"""The repository: subjects start here, and find the package ``benchmarks``."""

PEERS = ROOT / ".peers"

REQUIREMENTS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch==2.13.0", "numpy==2.4.6"),
    "jax": ("jax==0.10.2", "jaxlib==0.10.2", "numpy==2.4.6"),
    "mpi": ("mpi4py==4.1.2", "mpich==5.0.2", "numpy==2.4.6"),
    "tensorflow": ("tensorflow-cpu==2.21.0", "numpy==2.4.6"),
}
"""Environment -> what is installed into it. torch is best taken from an index of builds for CPUs only."""

_STAMP = "installed.txt"


class MissingEnvironmentError(Exception):
    """An environment that a subject needs is not there, or not in the versions asked for."""

    def __init__(self, environment: str) -> None:
        super().__init__(f"not installed: make bench-peers ARGS={environment}")


def python_of(environment: str, peers: Path = PEERS) -> Path:
    """The interpreter of an environment; "" is the one that runs this. Raises MissingEnvironmentError."""
    if not environment:
        return Path(sys.executable)
    folder = peers / environment
    stamp = folder / _STAMP
    if not stamp.is_file() or stamp.read_text() != _stamp(environment):
        raise MissingEnvironmentError(environment)
    return _python(folder)


def install(environments: Sequence[str], peers: Path = PEERS) -> None:
    """Make environments one after the other. Raises CalledProcessError when one cannot be made."""
    for environment in environments:
        folder = peers / environment
        print(f"{folder}: {' '.join(REQUIREMENTS[environment])}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(_python(folder)), "-m", "pip", "install", "--quiet", *REQUIREMENTS[environment]]
        subprocess.run(pip, check=True)
        # Written last: an environment without it is incomplete.
        (folder / _STAMP).write_text(_stamp(environment))


def _stamp(environment: str) -> str:
    return "\n".join(REQUIREMENTS[environment]) + "\n"


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"
