"""``python -m benchmarks [VERB]``: see its ``--help``."""

import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import FrameType

VERBS: Mapping[str, str] = {
    "peers": "benchmarks.environments",
    "backup": "benchmarks.backup",
    "tracking": "benchmarks.tracking",
    "input": "benchmarks.input",
    "language": "benchmarks.language",
    "gpu": "benchmarks.gpu.command",
    "null_step": "benchmarks.null_step",
    "tcp": "benchmarks.tcp",
    "simulator": "benchmarks.simulator",
    "recommend": "benchmarks.recommend",
    "table": "benchmarks.paper_table",
}
"""Verb -> module whose ``main`` runs the verb. A module is imported on use, so that "gpu" needs no Hydra or MLflow."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line. If its first word is not a verb, pass all arguments to ``benchmarks.tables``."""
    verb, *others = arguments or [""]
    module = VERBS.get(verb)
    chosen = import_module(module or "benchmarks.tables")
    return int(chosen.main(others if module else arguments))


def _exit(signum: int, frame: FrameType | None) -> None:
    """Exit with 128 plus the signal's number. The exit ends all benchmark processes."""
    sys.exit(128 + signum)


if __name__ == "__main__":
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)
    sys.exit(main(sys.argv[1:]))
