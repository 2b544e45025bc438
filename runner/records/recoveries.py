"""recoveries.jsonl: the recoveries of a run, a JSON object in each line, over all starts of the run."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append_recovery(path: Path, facts: Mapping[str, Any]) -> None:
    """Add the facts of one recovery, with the current time; see ``docs/run-record.md``."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time(), **facts}) + "\n")


def count_recoveries(path: Path) -> int:
    """Return the number of recoveries in the file; 0 if there is no file."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
