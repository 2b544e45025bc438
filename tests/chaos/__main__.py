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
    return int(any(not each["equal"] or each["left"] for each in trials))


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
        times = [seconds for trial in own for seconds in trial["recovery_s"]]
        hit = sum(bool(trial["process"]) for trial in own)
        equal, left = sum(trial["equal"] for trial in own), sum(trial["left"] for trial in own)
        late = quantiles(times, n=20)[-1] if len(times) > 1 else None
        shown = ["" if value is None else f"{value:.2f}" for value in (median(times) if times else None, late)]
        rows.append((case, f"{equal} of {len(own)}", str(hit), str(len(times)), *shown, str(left)))
    headers = ("case", "equal weights", "hit", "recoveries", "median, s", "95 %, s", "left behind")
    return text_table(headers, rows) + "\n\nGoals: all weights equal, 95 % of recoveries within 2 s, nothing left."


if __name__ == "__main__":
    sys.exit(main())
