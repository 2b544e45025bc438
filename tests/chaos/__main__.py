"""Run a chaos campaign: ``python -m tests.chaos --help``.

If the campaign is started again with the same file, it continues.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from runner.system.text import text_table
from tests.chaos.faults import CASES, run_with_fault, undisturbed

MOST_RECOVERY_S = 2.0


def main() -> int:
    """Run the trials that the file lacks, and print the table; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Kill processes at random times.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {'; '.join(CASES)}; default: all")
    parser.add_argument("--trials", type=int, default=30, help="of each case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no further trial after this time")
    parser.add_argument("--file", type=Path, default=Path("chaos.jsonl"), help="trials, a JSON object in each line")
    options = parser.parse_args()
    chosen = options.cases or list(CASES)
    if unknown := set(chosen) - CASES.keys():
        parser.error(f"unknown cases {sorted(unknown)}; expected some of {'; '.join(CASES)}")
    end = time.monotonic() + 60 * options.minutes
    lines = options.file.read_text().splitlines() if options.file.exists() else []
    trials = [trial for trial in map(json.loads, lines) if trial["seed"] == options.seed]
    for case in chosen:
        done = {trial["number"] for trial in trials if trial["case"] == case}
        missing = [number for number in range(options.trials) if number not in done]
        if missing and time.monotonic() < end:
            trials += _run(case, missing, options.seed, end, options.file)
    print(f"seed {options.seed}\n\n{_table(trials)}")
    return int(misses_a_goal(trials))


def misses_a_goal(trials: Sequence[dict[str, Any]]) -> bool:
    """Return whether weights differ, something is left, or 95 % of the recoveries of a case take longer than 2 s."""
    late = [_recoveries(trials, case)[2] for case in CASES]
    slow = any(seconds is not None and seconds > MOST_RECOVERY_S for seconds in late)
    return slow or any(not each["equal"] or each["left"] for each in trials)


def _recoveries(trials: Sequence[dict[str, Any]], case: str) -> tuple[int, float | None, float | None]:
    """Return the number of recoveries of a case, and the median and 95 % quantile of their seconds, None if unknown."""
    times = [seconds for trial in trials if trial["case"] == case for seconds in trial["recovery_s"]]
    return len(times), median(times) if times else None, quantiles(times, n=20)[-1] if len(times) > 1 else None


def _run(case: str, numbers: Sequence[int], seed: int, end: float, file: Path) -> list[dict[str, Any]]:
    found = []
    with TemporaryDirectory() as name:
        expected, seconds = undisturbed(CASES[case], Path(name))
        for number in numbers:
            if time.monotonic() > end:
                break
            trial = run_with_fault(case, number, seed, seconds, Path(name))
            found.append({"seed": seed, **asdict(trial), "equal": trial.weights_sha256 == expected})
            with file.open("a") as out:
                out.write(json.dumps(found[-1]) + "\n")
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def _table(trials: Sequence[dict[str, Any]]) -> str:
    rows = []
    for case in CASES:
        own = [trial for trial in trials if trial["case"] == case]
        hit = sum(bool(trial["process"]) for trial in own)
        equal, left = sum(trial["equal"] for trial in own), sum(trial["left"] for trial in own)
        count, *seconds = _recoveries(trials, case)
        shown = ["" if value is None else f"{value:.2f}" for value in seconds]
        rows.append((case, f"{equal} of {len(own)}", str(hit), str(count), *shown, str(left)))
    headers = ("case", "equal weights", "hit", "recoveries", "median, s", "95 %, s", "left behind")
    return text_table(headers, rows) + (
        f"\n\nGoals: all weights equal, 95 % of recoveries within {MOST_RECOVERY_S:g} s, nothing left."
    )


if __name__ == "__main__":
    sys.exit(main())
