"""``python -m benchmarks [VERB]``: see its ``--help``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
