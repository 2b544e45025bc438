"""What a run decided as it went and no configuration says, on the disk: JSON lines, one for each decision.

Every line is an object with its "step".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from runner.files import read_regular, replace_durably

LONGEST_BYTES = 1 << 30


def read_decisions(path: Path) -> list[dict[str, Any]]:
    """Read all lines of a file.

    Raises OSError, SecurityError where it is not a regular one, and ValueError where it holds anything else.
    """
    content = read_regular(path, LONGEST_BYTES)
    if len(content) > LONGEST_BYTES:
        raise ValueError(f"it is longer than {LONGEST_BYTES} bytes")
    lines = [json.loads(line) for line in content.splitlines()]
    for number, line in enumerate(lines, 1):
        if not isinstance(line, dict) or type(line.get("step")) is not int:
            raise ValueError(f"line {number} is not an object with a step")
    return lines


class Decisions:
    """The files of one run's decisions, each kept up to where this process begins and written anew from there."""

    def __init__(self, directory: Path, first_step: int) -> None:
        """first_step: what an earlier process decided from there on is forgotten, as its steps are."""
        self._directory = directory
        self._first_step = first_step
        self._earlier: dict[str, bytes] = {}

    def write(self, record: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[Path]:
        """Replace the file NAME.jsonl of every name of a record; returns the files. Raises OSError."""
        paths = []
        for name, lines in record.items():
            path = self._directory / f"{name}.jsonl"
            if name not in self._earlier:
                self._earlier[name] = self._kept(path)
            replace_durably(path, self._earlier[name] + _encoded(lines))
            paths.append(path)
        return paths

    def _kept(self, path: Path) -> bytes:
        if self._first_step == 0 or not path.exists():
            return b""
        return _encoded(line for line in read_decisions(path) if line["step"] < self._first_step)


def dropped_by_worker(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Shares that were dropped in a run, and their examples, by worker; empty where ``path`` is not there."""
    shares: Counter[str] = Counter()
    examples: Counter[str] = Counter()
    for line in read_decisions(path) if path.exists() else ():
        for late in line.get("dropped", ()):
            worker = f"worker-{late['worker']}"
            shares[worker] += 1
            examples[worker] += late["examples"]
    return dict(sorted(shares.items())), dict(sorted(examples.items()))


def _encoded(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
