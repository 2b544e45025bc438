"""The virtual environments of the peers, below ``.peers``: one environment per library, with pinned versions."""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
"""The repository. Benchmark processes start in this folder, so that they can import the package ``benchmarks``."""

PEERS = ROOT / ".peers"

REQUIREMENTS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch==2.13.0", "numpy==2.4.6"),
    "jax": ("jax==0.10.2", "jaxlib==0.10.2", "numpy==2.4.6"),
    "mpi": ("mpi4py==4.1.2", "mpich==5.0.2", "numpy==2.4.6"),
    "tensorflow": ("tensorflow-cpu==2.21.0", "numpy==2.4.6"),
    "images": ("torch==2.13.0", "simplejpeg==1.9.0", "pillow==13.0.0", "numpy==2.4.6"),
}
"""Environment -> its requirements. To save disk space, configure pip with the index of torch's CPU builds."""

_STAMP = "installed.txt"


class MissingEnvironmentError(Exception):
    """An environment is missing or does not have the required versions."""

    def __init__(self, environment: str) -> None:
        super().__init__(f"not installed: run make bench-peers ARGS={environment}")


def python_of(environment: str, peers: Path = PEERS) -> Path:
    """Return the interpreter of an environment; "" is the current one. Raises MissingEnvironmentError."""
    if not environment:
        return Path(sys.executable)
    folder = peers / environment
    stamp = folder / _STAMP
    if not stamp.is_file() or stamp.read_text() != _stamp(environment):
        raise MissingEnvironmentError(environment)
    return _python(folder)


def install(environments: Sequence[str], peers: Path = PEERS) -> None:
    """Create environments one after the other. Raises CalledProcessError if one cannot be created."""
    for environment in environments:
        folder = peers / environment
        print(f"{folder}: {' '.join(REQUIREMENTS[environment])}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(_python(folder)), "-m", "pip", "install", "--quiet", *REQUIREMENTS[environment]]
        subprocess.run(pip, check=True)
        # The stamp is written last: an environment without a stamp is incomplete.
        (folder / _STAMP).write_text(_stamp(environment))


def main(arguments: Sequence[str]) -> int:
    """Create the environments of other frameworks, ``python -m benchmarks peers``; see its ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers", description="Install other frameworks.")
    parser.add_argument("environments", nargs="*", metavar="NAME", help=f"some of: {', '.join(REQUIREMENTS)}")
    given = parser.parse_args(arguments).environments
    install(members(parser, "NAME", given or tuple(REQUIREMENTS), tuple(REQUIREMENTS)))
    return 0


def members(
    parser: argparse.ArgumentParser, option: str, given: Sequence[str], known: Sequence[str]
) -> tuple[str, ...]:
    """Return the given words; end the command with an error if one of them is not known."""
    unknown = [word for word in given if word not in known]
    if unknown:
        parser.error(f"{option} {unknown[0]!r}: expected some of {', '.join(known)}")
    return tuple(given)


def _stamp(environment: str) -> str:
    return "\n".join(REQUIREMENTS[environment]) + "\n"


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"
