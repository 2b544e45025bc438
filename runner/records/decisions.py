"""Files, in JSON Lines format, of decisions that a run's configuration leaves open, such as which gradients are late.

The first line identifies the run; every other line is one decision, an object with the key "step".
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.system.files import read_regular, replace_durably
from runner.system.json_file import parse_json
from runner.system.schema import LenientRecord

LONGEST_BYTES = 1 << 30
_VERSION = 1


@dataclass(frozen=True)
class _Decision:
    """The fields that all decisions have."""

    step: int


def read_decisions(path: Path) -> list[dict[str, Any]]:
    """Read all decisions in a file; a first line that identifies the run is optional and not returned.

    Raises OSError, SecurityError if the file is not a regular file, and ValueError if any other line is not a decision.
    """
    lines = _lines(path)
    first = 0 if _outcome(lines) is None else 1
    schema = LenientRecord(_Decision, closed=False)
    for number, line in enumerate(lines[first:], first + 1):
        schema.read(line, f"line {number}")
    return lines[first:]


def outcome_of(path: Path) -> str | None:
    """Return the hash in the first line, which identifies the run; None if the first line is a decision.

    Raises the same errors as :func:`read_decisions`.
    """
    return _outcome(_lines(path))


def _lines(path: Path) -> list[Any]:
    content = read_regular(path, LONGEST_BYTES)
    if len(content) > LONGEST_BYTES:
        raise ValueError(f"the record is longer than {LONGEST_BYTES} bytes, the limit")
    return [parse_json(line, LONGEST_BYTES) for line in content.splitlines()]


def _outcome(lines: Sequence[Any]) -> str | None:
    match lines:
        case [{"version": version, "outcome": str(outcome)}, *_] if version == _VERSION:
            return outcome
    return None


class Decisions:
    """The decision files of one run. If this process resumes the run, it continues the files of an earlier process."""

    def __init__(self, directory: Path, first_step: int, outcome: str) -> None:
        """Continue the files in ``directory``.

        first_step: the first step of this process. The decisions of earlier processes from this step on are dropped.
        outcome: the hash of the configuration, as returned by :func:`~runner.config.outcome.outcome_hash`.
        """
        self._directory = directory
        self._first_step = first_step
        self._first_line = _encoded([{"version": _VERSION, "outcome": outcome}])
        self._earlier: dict[str, bytes] = {}

    def write(self, record: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[Path]:
        """Write the decisions ``record[NAME]`` of this process to NAME.jsonl; return the paths. Raises OSError."""
        paths = []
        for name, lines in record.items():
            path = self._directory / f"{name}.jsonl"
            if name not in self._earlier:
                self._earlier[name] = self._kept(path)
            replace_durably(path, self._first_line + self._earlier[name] + _encoded(lines))
            paths.append(path)
        return paths

    def _kept(self, path: Path) -> bytes:
        if self._first_step == 0 or not path.exists():
            return b""
        return _encoded(line for line in read_decisions(path) if line["step"] < self._first_step)


def dropped_by_worker(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return worker -> number of dropped shares (late gradients for part of a batch), and worker -> their examples."""
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
