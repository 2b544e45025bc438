"""Write tracking records from a run's directory to the store if they did not reach it before the run ended."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runner.config import safe_yaml
from runner.errors import DirectoryInUseError, RunnerError
from runner.records.run_directory import CONFIG_FILE, SUMMARY_FILE, locked
from runner.records.summary import Summary
from runner.tracking.records import End
from runner.tracking.replay import Replay
from runner.tracking.spool import SPOOL_FILE
from runner.tracking.writer import StoreUnavailableError


@dataclass(frozen=True)
class LateRecords:
    """The result of writing the pending tracking records of some runs.

    records: run directory -> number of records that were written to the store. running: directories of runs that are
    still running. left: reason why records are still pending -> directories of the runs with these records.
    """

    records: dict[Path, int] = field(default_factory=dict)
    running: list[Path] = field(default_factory=list)
    left: dict[str, list[Path]] = field(default_factory=dict)

    def lines(self, places: Iterable[Path]) -> Iterator[str]:
        """Yield lines for the terminal. places: the arguments to show in the advice to call ``runner sync``."""
        if self.records:
            records, runs = sum(self.records.values()), len(self.records)
            yield f"written to the tracking store: {_counted(records, 'record')} of {_counted(runs, 'run')}"
        if self.running:
            yield f"skipped, still running: {_listed(self.running)}"
        for why, directories in self.left.items():
            runs_left = _counted(len(directories), "run")
            yield f"warning: tracking records of {runs_left} are still pending ({why}): {_listed(directories)}"
        if self.left:
            yield f"warning: write them with `runner sync {shlex.join(map(str, places))}`"


def late_runs(directory: Path) -> list[Path]:
    """Return the run directories with pending records at or below ``directory``."""
    return sorted(spool.parent for spool in directory.rglob(SPOOL_FILE))


def write_late(runs: Iterable[Path], replay: Replay) -> LateRecords:
    """Write the pending records of these runs to their stores; after an error with one run, continue with the next."""
    outcome = LateRecords()
    for run_dir in runs:
        try:
            with locked(run_dir):
                outcome.records[run_dir] = replay.run(run_dir, store_setting(run_dir), _end(run_dir))
        except DirectoryInUseError:
            outcome.running.append(run_dir)
        except (StoreUnavailableError, OSError, ValueError, RunnerError) as error:
            outcome.left.setdefault(str(error), []).append(run_dir)
    return outcome


def store_setting(run_dir: Path) -> str | None:
    """Return ``tracking.uri`` of a run, or None. No other key of its configuration is used, so no plugin is needed."""
    tracking = safe_yaml.load(run_dir / CONFIG_FILE).get("tracking")
    uri = tracking.get("uri") if isinstance(tracking, dict) else None
    return uri if isinstance(uri, str) else None


def _end(run_dir: Path) -> End | None:
    """Return status and end time of a run; None if it was killed. Raises DataError for a damaged summary."""
    summary = run_dir / SUMMARY_FILE
    if not summary.exists():
        return None
    return End(Summary.read(summary).status, summary.stat().st_mtime_ns // 1_000_000)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _listed(directories: Iterable[Path]) -> str:
    return ", ".join(map(str, directories))
