"""Kill or stop a random worker of one run again and again: ``python -m tests.chaos.storm --help``.

``useful`` is the number of steps of a run with faults, divided by the number of steps if it always had the speed of the
second half of the time between two faults. ``ratio`` is the time of the same run without faults, divided by that with
faults; a machine whose speed changes from minute to minute changes it more.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

from tests.chaos.faults import MASTER, count_left, processes_of_run, recoveries, start, undisturbed, weights_of

RUNS: Mapping[str, Sequence[str]] = {
    "sync_data": ("parallelism=sync_data", "parallelism.workers=4", "cluster.spares=1"),
    "async_data": ("parallelism=async_data", "parallelism.workers=4", "cluster.spares=1"),
}
_AFTER_DETECTION = ("fenced_s", "started_s", "state_s", "redone_s")
_LIMIT_S = 3600.0
"""A run that takes longer is ended."""


def main() -> int:
    """Run with faults, print a JSON object for each run, and return 1 if a run fails, differs or leaves processes."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.storm", description=__doc__)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="further overrides")
    parser.add_argument("--steps", type=int, default=100_000, help="length of the run")
    parser.add_argument(
        "--every", type=float, nargs="+", default=[29.0], metavar="SECONDS", help="time between two faults, of each run"
    )
    parser.add_argument(
        "--signals",
        nargs="+",
        default=["KILL"],
        choices=["KILL", "STOP", "KILL,STOP"],
        help="of the faults of each run",
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_intermixed_args()
    length = (f"train.steps={options.steps}", f"train.eval_every={options.steps}")
    overrides = (*RUNS[options.run], *length, *options.overrides)
    wrong = 0
    with TemporaryDirectory() as folder:
        races = options.run == "async_data"
        weights, seconds = ("", None) if races else undisturbed(overrides, Path(folder), _LIMIT_S)
        for every_s, names in product(options.every, options.signals):
            signals = [signal.Signals[f"SIG{name}"] for name in names.split(",")]
            directory = Path(folder, f"{every_s:g}-{names.replace(',', '-')}")
            found = _disturbed(overrides, directory, every_s, signals, options.seed)
            if seconds is not None:
                found |= {"equal": found["weights_sha256"] == weights, "ratio": seconds / found["seconds"]}
            print(json.dumps({**vars(options), "every": every_s, "signals": names, **found}), flush=True)
            wrong += found["code"] != 0 or not found.get("equal", True) or found["left"] != 0
    return int(wrong > 0)


def _disturbed(
    overrides: Sequence[str], directory: Path, every_s: float, signals: Sequence[signal.Signals], seed: int
) -> dict[str, Any]:
    """Run with faults; return what happened, by name."""
    random, sent, done = Random(seed), list[tuple[float, str]](), list[int]()
    process = start(overrides, directory)
    begun = time.monotonic()
    while True:
        try:
            code = process.wait(every_s / 2)
            break
        except subprocess.TimeoutExpired:
            if time.monotonic() > begun + _LIMIT_S:
                process.terminate()
            done.append(_newest_step(directory))
            if len(done) % 2:  # in the middle between two faults
                continue
            workers = [each for name, each in processes_of_run(process) if name != MASTER]
            if workers:
                chosen = random.choice(signals)
                sent.append((time.time(), chosen.name))
                random.choice(workers).send_signal(chosen)
    return {
        "seconds": time.monotonic() - begun,
        "code": code,
        "faults": len(sent),
        "recoveries": {each.name: _recovery_times(directory, sent, each.name) for each in signals},
        "useful": _useful(done[1::2], done[2::2]),
        "weights_sha256": "" if code else weights_of(directory),
        "left": count_left(directory),
    }


def _recovery_times(directory: Path, sent: Sequence[tuple[float, str]], name: str) -> dict[str, Any]:
    """Return the number of recoveries from one signal, and [median, 95 %] of the seconds from the signal until it was
    noticed, and until the interrupted step was repeated.

    sent: time and name of each signal. A process that replaces another without a wait has no time of its start.
    """
    noticed, repeated = [], []
    for line in recoveries(directory):
        at, cause = max(each for each in sent if each[0] <= line["time"])
        if cause == name:
            repeated.append(line["time"] - at)
            noticed.append(repeated[-1] - sum(line[phase] or 0.0 for phase in _AFTER_DETECTION))
    times = {"noticed_s": noticed, "repeated_s": repeated}
    levels = {key: quantiles(each, n=20) for key, each in times.items() if len(each) > 1}
    return {"count": len(repeated)} | {key: [each[9], each[18]] for key, each in levels.items()}


def _newest_step(directory: Path) -> int:
    """Return the newest step of the metrics, which a recovery removes from the first repeated step on."""
    lines = (directory / "metrics.jsonl").read_bytes().rpartition(b"\n")[0].splitlines()
    return int(json.loads(lines[-1])["step"]) if lines else 0


def _useful(ends: Sequence[int], middles: Sequence[int]) -> float | None:
    """Return the useful throughput between the first and the last fault; None with fewer than two.

    ends, middles: numbers of steps done at each fault, and in the middle between it and the next one.
    """
    possible = sum(2 * (end - middle) for middle, end in zip(middles, ends[1:], strict=False))
    return (ends[-1] - ends[0]) / possible if possible else None


if __name__ == "__main__":
    sys.exit(main())
