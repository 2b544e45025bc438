"""``python -m benchmarks [CASE ...]``: time training steps and print a table with machine, versions and date."""

from __future__ import annotations

import argparse
import datetime

from benchmarks.step import CASES, measure
from runner.cores import usable_cores
from runner.summary import processor, versions


def main() -> None:
    """Measure the cases whose names begin with the given words, all without any."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"beginnings of: {'; '.join(CASES)}")
    wanted = tuple(parser.parse_args().cases) or ("",)
    chosen = [case for case in CASES if case.startswith(wanted)]
    if not chosen:
        parser.error(f"no case begins with {' or '.join(wanted)}")
    found = versions()
    today = datetime.datetime.now(tz=datetime.UTC).date()
    print(f"{processor()}, {usable_cores()} cores, Python {found['python']}, NumPy {found['numpy']}, {today}\n")
    print("| case | strategy | step, ms | quartiles, ms | examples/s |")
    print("|---|---|---|---|---|")
    for case in chosen:
        for timing in measure(case):
            print(timing.row, flush=True)


if __name__ == "__main__":
    main()
