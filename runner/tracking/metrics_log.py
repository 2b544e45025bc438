"""metrics.jsonl: the metrics of a run, one JSON object per line. The file is written with every kind of tracking.

An example of a line is ``{"step": 3, "time": 1767225600.5, "values": {"train/loss": 0.25}}``. ``time`` is in seconds
since 1970. Values that are not finite are the strings "nan", "inf" and "-inf". If a run is resumed or
recovers from a lost worker, the lines of the steps that it repeats are removed.
"""

import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Self, TextIO

from runner.system.json_file import parse_json
from runner.system.schema import Integer, Number, Record, Violation
from runner.tracking.records import VALUES, Metrics

_log = logging.getLogger(__name__)

BEST = "best"
SECTIONS = ("train", "val", "test", "adapt", BEST, "simulated", "perf", "comm", "system")
_METRIC_NAME = re.compile(rf"({'|'.join(SECTIONS)})/[A-Za-z0-9_.\-]+(/[A-Za-z0-9_.\-]+)*")


class MetricsLog:
    """An open metrics.jsonl; ``append`` returns after the operating system has received the line."""

    def __init__(self, path: Path, first_step: int = 0) -> None:
        """Open ``path``, and remove the lines of ``first_step`` and later steps."""
        self._checked: set[str] = set()
        self._path = path
        _truncate(path, first_step)
        self._file: TextIO = path.open("a", buffering=1, encoding="utf-8")

    def append(self, step: int, values: Mapping[str, float]) -> None:
        """Add the values of a step; raises ValueError for a name that is not ``section/name``."""
        for name in values.keys() - self._checked:
            check_metric_name(name)
            self._checked.add(name)
        numbers = {name: float(value) for name, value in values.items()}
        self._file.write(_line(int(step), time.time(), numbers))

    def rewind(self, first_step: int) -> None:
        """Remove the lines of ``first_step`` and later steps, which the run repeats.

        Reads only these lines, from the end, because a recovery waits for it. A checkpoint may be written meanwhile.
        """
        if not self._path.stat().st_size:
            return
        with self._path.open("r+b") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as lines:
            end = len(lines)
            while end and json.loads(lines[(begin := lines.rfind(b"\n", 0, end - 1) + 1) : end])["step"] >= first_step:
                end = begin
            file.truncate(end)

    def sync(self) -> None:
        """Flush the lines to the disk; called before each checkpoint, so that a crash loses no earlier metrics."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _metrics(step: int, time: float, values: Mapping[str, float]) -> Metrics:
    return Metrics(step, round(time * 1000), values)


_LINE = Record(_metrics, step=Integer(), time=Number(0.0, 1e12), values=VALUES)
_LONGEST_LINE = 2**20


def read_metrics(path: Path) -> Iterator[Metrics]:
    """Yield the records of a metrics.jsonl in order. The last line is ignored if it is incomplete.

    Raises ValueError, which names the file and the line number, for any other line that is not a record.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                found = _LINE.read(parse_json(line, _LONGEST_LINE))
            except Violation as violation:
                fault = f"{path}:{number}: {line.strip()[:80]!r} is not a metrics record"
                raise ValueError(f"{fault} ({violation})") from violation
            yield found


def check_metric_name(name: str) -> None:
    """Raise ValueError unless the name is ``section/name``; MLflow's pages group metrics by section."""
    if not _METRIC_NAME.fullmatch(name):
        expected = f"SECTION/NAME of letters, digits and _ . - / with SECTION one of {', '.join(SECTIONS)}"
        raise ValueError(f"metric {name!r}: expected {expected}")


def _line(step: int, time_s: float, values: Mapping[str, float]) -> str:
    record = {"step": step, "time": time_s, "values": VALUES.write(values, "values")}
    return json.dumps(record, allow_nan=False) + "\n"


def _truncate(path: Path, first_step: int) -> None:
    """Atomically remove the records of ``first_step`` and later steps, and a damaged end of the file."""
    if not path.exists():
        return
    kept = path.with_name(path.name + ".tmp")
    with kept.open("w", encoding="utf-8") as file:
        try:
            for record in read_metrics(path):
                if record.step < first_step:
                    file.write(_line(record.step, record.time_ms / 1000, record.values))
        except ValueError as error:
            # A power cut can leave any bytes after the last sync(). Such bytes must not prevent a resume.
            _log.warning("%s; this line and all later lines are dropped", error)
        file.flush()
        os.fsync(file.fileno())
    kept.replace(path)
