"""Kill or stop a random worker of one run again and again: ``python -m tests.chaos.storm --help``.

The same run without faults comes first. The ratio of its time to that of the run with faults is the useful throughput.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tests.chaos.faults import MASTER, count_left, processes_by_name, recoveries, start, undisturbed, weights_of

RUNS: Mapping[str, Sequence[str]] = {
    "sync_data": ("parallelism=sync_data", "parallelism.workers=4", "cluster.spares=1"),
    "async_data": ("parallelism=async_data", "parallelism.workers=4", "cluster.spares=1"),
}
_PHASES = ("found_s", "fenced_s", "started_s", "state_s", "redone_s")
_SLOWEST = 4.0
"""A run that takes this many times longer than without faults is ended."""


def main() -> int:
    """Run with faults, and print a JSON object; return 1 if the run fails, has other weights or leaves something."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.storm", description=__doc__)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--steps", type=int, default=100_000, help="length of the run")
    parser.add_argument("--every", type=float, default=29.0, metavar="SECONDS", help="time from one fault to the next")
    parser.add_argument("--signals", nargs="+", default=["KILL"], choices=["KILL", "STOP"], help="drawn for each fault")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    overrides = (*RUNS[options.run], f"train.steps={options.steps}", f"train.eval_every={options.steps}")
    with TemporaryDirectory() as folder:
        weights, seconds = undisturbed(overrides, Path(folder), 3600.0)
        signals = [signal.Signals[f"SIG{name}"] for name in options.signals]
        found = _disturbed(overrides, Path(folder), options.every, signals, options.seed, _SLOWEST * seconds)
    is_equal = found["weights_sha256"] == weights
    found |= {"equal": is_equal, "undisturbed_s": seconds, "useful": seconds / found["seconds"]}
    print(json.dumps({**vars(options), **found}))
    is_right = is_equal or options.run == "async_data"  # whose workers race
    return int(found["code"] != 0 or not is_right or found["left"] != 0)


def _disturbed(
    overrides: Sequence[str], folder: Path, every_s: float, signals: Sequence[signal.Signals], seed: int, limit_s: float
) -> dict[str, Any]:
    """Run with faults; return what happened, by name."""
    directory, random, faults = folder / "disturbed", Random(seed), 0
    process = start(overrides, directory)
    begun = time.monotonic()
    while True:
        try:
            code = process.wait(every_s)
            break
        except subprocess.TimeoutExpired:
            if time.monotonic() > begun + limit_s:
                process.terminate()
                limit_s += every_s
            workers = {name: each for name, each in processes_by_name(process).items() if name != MASTER}
            if workers:
                workers[random.choice(sorted(workers))].send_signal(random.choice(signals))
                faults += 1
    lines = recoveries(directory)
    lost = [sum(line[phase] or 0.0 for phase in _PHASES) for line in lines]
    return {
        "seconds": time.monotonic() - begun,
        "code": code,
        "faults": faults,
        "recoveries": len(lines),
        "median_recovery_s": median(lost) if lost else None,
        "weights_sha256": "" if code else weights_of(directory),
        "left": count_left(directory),
    }


if __name__ == "__main__":
    sys.exit(main())
