"""``python -m benchmarks peers``: see its ``--help``."""

from collections.abc import Sequence

from benchmarks.environments import install
from benchmarks.options import parse_peers


def main(arguments: Sequence[str]) -> int:
    """Create the environments of the other frameworks."""
    install(parse_peers(arguments))
    return 0
