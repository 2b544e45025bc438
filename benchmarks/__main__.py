"""``python -m benchmarks [VERB]``: see its ``--help``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import FrameType

VERBS: Mapping[str, str] = {
    "peers": "benchmarks.installing",
    "backup": "benchmarks.backup",
    "tracking": "benchmarks.tracking",
    "gpu": "benchmarks.gpu.command",
}
"""Word -> module with its ``main``, imported when it is asked for: "gpu" runs where neither Hydra nor MLflow is."""


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; its first word is a verb, or else all of it is for the tables."""
    verb, *others = arguments or [""]
    module = VERBS.get(verb)
    chosen = import_module(module or "benchmarks.tables")
    return int(chosen.main(others if module else arguments))


def _exit(signum: int, frame: FrameType | None) -> None:
    """Leave as after an error, so that every subject is ended."""
    sys.exit(128 + signum)


if __name__ == "__main__":
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)
    sys.exit(main(sys.argv[1:]))
