"""``runner sync``: bring records that runs could not bring to the tracking store there, now that they have ended."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from runner.errors import ConfigError, DirectoryInUseError, RunnerError
from runner.records.late_tracking import bring_over, late_runs
from runner.sweep.report import end_late, recorded_sweeps
from runner.system.console import verb_parser
from runner.tracking.replay import Replay
from runner.tracking.writer import StoreUnavailableError

LEFT_EXIT_CODE = 1

_DESCRIPTION = """\
Where the tracking store is slow or away as a run ends, the rest of the run's records waits in tracking-spool.jsonl of
its directory. This writes it to the store the run is recorded in: in order, nothing twice, with the end of the run as
it was. A sweep does the same for its jobs as it ends; where it could not, its own record is ended here too, with its
tables. Runs that are still running are left alone."""

_EXAMPLE = """\
Exit code 0: nothing waits any more, but in runs that are still running; 1: something does.

examples:
  runner sync outputs/2026-01-31/12-00-00
  runner sync outputs multirun"""


def main(arguments: Sequence[str]) -> int:
    """Bring over what waits in and below the directories named and say so; return the exit code."""
    parser = verb_parser("sync", _DESCRIPTION, _EXAMPLE)
    parser.add_argument("directories", nargs="+", metavar="DIR", help="of a run, of a sweep, or of many of them")
    places = [_directory(text) for text in parser.parse_args(arguments).directories]
    # A directory may be named twice, itself and by one above it.
    runs = dict.fromkeys(run for place in places for run in late_runs(place))
    outcome = bring_over(runs, Replay())
    left = [run for directories in outcome.left.values() for run in directories]
    # The store of their sweep is away, or it has not ended.
    unfinished = recorded_sweeps([*left, *outcome.running])
    sweeps = [sweep for sweep in recorded_sweeps([*places, *outcome.records]) if sweep not in unfinished]
    warnings = [warning for sweep in sweeps for warning in _end(sweep)]
    for line in [*outcome.lines(places), *warnings] if runs or warnings else ["no tracking records wait there"]:
        print(line, file=sys.stderr if line.startswith("warning") else sys.stdout)
    return LEFT_EXIT_CODE if left or warnings else 0


def _end(sweep: Path) -> list[str]:
    """End the tracking record of a sweep, unless it is running; return what is to be said where that fails."""
    try:
        end_late(sweep)
    except DirectoryInUseError:
        return []
    except (StoreUnavailableError, OSError, ValueError, RunnerError) as error:
        return [f"warning: the tracking record of the sweep in {sweep} is not ended ({error}); try it again"]
    return []


def _directory(text: str) -> Path:
    path = Path(text).absolute()
    if not path.is_dir():
        raise ConfigError(f"{text}: no such directory; expected that of a run or a sweep, or one above several")
    return path
