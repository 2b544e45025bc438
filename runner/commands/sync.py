"""``runner sync``: bring records that runs could not bring to the tracking store there, now that they have ended."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.errors import ConfigError
from runner.records.late_tracking import bring_over, late_runs
from runner.tracking.replay import Replay

LEFT_EXIT_CODE = 1

_DESCRIPTION = """\
Where the tracking store is slow or away as a run ends, the rest of the run's records waits in tracking-spool.jsonl of
its directory. This writes it to the store the run is recorded in: in order, nothing twice, with the end of the run as
it was. A sweep does the same for its jobs as it ends. Runs that are still running are left alone."""

_EXAMPLE = """\
Exit code 0: nothing waits any more, but in runs that are still running; 1: something does.

examples:
  runner sync outputs/2026-01-31/12-00-00
  runner sync outputs multirun"""


def main(arguments: Sequence[str]) -> int:
    """Bring over what waits in and below the directories named and say so; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="runner sync",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directories", nargs="+", metavar="DIR", help="of a run, of a sweep, or of many of them")
    places = [_directory(text) for text in parser.parse_args(arguments).directories]
    # A directory may be named twice, itself and by one above it.
    runs = dict.fromkeys(run for place in places for run in late_runs(place))
    if not runs:
        print("no tracking records wait there")
        return 0
    outcome = bring_over(runs, Replay())
    for line in outcome.lines(places):
        print(line, file=sys.stderr if line.startswith("warning") else sys.stdout)
    return LEFT_EXIT_CODE if outcome.left else 0


def _directory(text: str) -> Path:
    path = Path(text).absolute()
    if not path.is_dir():
        raise ConfigError(f"{text}: no such directory; expected that of a run or a sweep, or one above several")
    return path
