"""``runner sync``: write the pending tracking records of ended runs from their directories to the store."""

import sys
from collections.abc import Sequence
from pathlib import Path

from runner.errors import ConfigError, DirectoryInUseError, RunnerError
from runner.records.late_tracking import late_runs, write_late
from runner.sweeps.report import end_late, recorded_sweeps
from runner.system.console import verb_parser
from runner.tracking.replay import Replay
from runner.tracking.writer import StoreUnavailableError

PENDING_EXIT_CODE = 1

_DESCRIPTION = """\
If the tracking store is slow or not available when a run ends, the remaining records wait in tracking-spool.jsonl in
the run directory. This command writes the records to the run's store: in order, each once, with the original end time.
A sweep does the same for its jobs when it ends; if that failed, this command also ends the record of the sweep, with
its tables. Active runs are skipped."""

_EXAMPLE = """\
Exit code 0: no records wait, except in active runs; 1: some records still wait.

examples:
  runner sync outputs/2026-01-31/12-00-00
  runner sync outputs multirun"""


def main(arguments: Sequence[str]) -> int:
    """Write the pending records of runs in and below the given directories to the store; return the exit code."""
    parser = verb_parser("sync", _DESCRIPTION, _EXAMPLE)
    parser.add_argument("directories", nargs="+", metavar="DIR", help="directory of a run or sweep, or folder of them")
    places = [_directory(text) for text in parser.parse_args(arguments).directories]
    # A run may be found twice: by its own path and by the path of a folder above it.
    runs = dict.fromkeys(run for place in places for run in late_runs(place))
    outcome = write_late(runs, Replay())
    left = [run for directories in outcome.left.values() for run in directories]
    # Records of these sweeps stay open, because records of their runs are missing: a run is active, or writing failed.
    unfinished = recorded_sweeps([*left, *outcome.running])
    sweeps = [sweep for sweep in recorded_sweeps([*places, *outcome.records]) if sweep not in unfinished]
    warnings = [warning for sweep in sweeps for warning in _end(sweep)]
    for line in [*outcome.lines(places), *warnings] if runs or warnings else ["no tracking records are waiting"]:
        print(line, file=sys.stderr if line.startswith("warning") else sys.stdout)
    return PENDING_EXIT_CODE if left or warnings else 0


def _end(sweep: Path) -> list[str]:
    """End the tracking record of a sweep that is not running; return warnings if that fails."""
    try:
        end_late(sweep)
    except DirectoryInUseError:
        return []
    except (StoreUnavailableError, OSError, ValueError, RunnerError) as error:
        return [f"warning: the tracking record of the sweep in {sweep} could not be ended ({error}); try again"]
    return []


def _directory(text: str) -> Path:
    path = Path(text).absolute()
    if not path.is_dir():
        raise ConfigError(f"{text}: no such directory; expected the directory of a run or sweep, or a folder of them")
    return path
