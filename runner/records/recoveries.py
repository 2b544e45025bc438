"""recoveries.jsonl: the recoveries of a run, a JSON object in each line, over all starts of the run."""

import json
import time
from pathlib import Path

from runner.errors import WorkerLostError


def append_recovery(
    path: Path, lost: WorkerLostError, *, step: int, continued_from: int, epoch: int, seconds: float | None
) -> None:
    """Add the recovery from ``lost``.

    step: the interrupted step. continued_from: the step from which the run continues. epoch: the number of the start
    with which the run continues. seconds: duration of the recovery; None for a lost master, which cannot measure it.
    """
    facts = {"epoch": epoch, "time": time.time(), "worker": lost.worker, "cause": lost.cause, "step": step}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**facts, "continued_from": continued_from, "seconds": seconds}) + "\n")


def count_recoveries(path: Path) -> int:
    """Return the number of recoveries in the file; 0 if there is no file."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
