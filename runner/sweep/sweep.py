"""The jobs of one sweep: each runs in its turn whatever became of the others, and a table compares them."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.config.hydra_app import Job
from runner.config.schema import Config
from runner.console import print_error
from runner.errors import DirectoryInUseError, Interrupted, RunnerError
from runner.records.summary import Failure, Summary, processor, versions
from runner.redaction import redact_overrides
from runner.sweep.table import sweep_table

SUMMARY_FILE = "summary.json"
TABLE_FILE = "jobs.csv"
FAILED_EXIT_CODE = 1


class Sweep:
    """Runs the jobs that Hydra hands it and keeps their summaries, those of failed jobs included."""

    def __init__(self, train: Callable[[Config, Job], Summary], *, debug: bool = False) -> None:
        self._train = train
        self._debug = debug
        self._directory: Path | None = None
        self._tracking: Any = None
        self._summaries: list[Summary] = []

    def run(self, job: Job) -> None:
        """Train one job and note how it ended.

        A RunnerError is told here and not raised: Hydra would tell it once more and, between batches of jobs,
        stop. A defect is raised again. An interruption is meant for the whole sweep: it is raised as
        KeyboardInterrupt, which Hydra does not take for the failure of one job.
        """
        assert job.sweep is not None
        self._directory = job.sweep.directory
        swept = ", ".join(redact_overrides(f"{key}={value}" for key, value in job.sweep.swept.items()))
        label = f"job {job.sweep.number}" + (f" ({swept})" if swept else "")
        print(label, file=sys.stderr, flush=True)
        try:
            config = job.config()
            self._tracking = config.tracking
            self._summaries.append(self._train(config, job))
        except Interrupted as stop:
            self._summaries.append(_summary_of_failure(job, stop))
            raise KeyboardInterrupt from stop
        except Exception as error:
            print_error(error, what=label, debug=self._debug)
            self._summaries.append(_summary_of_failure(job, error))
            if not isinstance(error, RunnerError):
                raise

    def finish(self, *, interrupted: bool = False) -> int:
        """Print and store the table of jobs, end the sweep's tracking record, return its exit code."""
        if self._directory is None:
            return 0
        table = sweep_table(self._summaries)
        table.print()
        table_file = self._directory / TABLE_FILE
        table_file.write_text(table.csv(), encoding="utf-8")
        failed = sum(summary.status == "failed" for summary in self._summaries)
        status = "interrupted" if interrupted else "failed" if failed else "finished"
        if self._tracking is not None:
            self._tracking.finish_sweep(self._directory, status, [table_file], table.markdown())
        if status != "finished":
            jobs = f"{failed} of {len(self._summaries)} jobs failed"
            what = f"sweep interrupted, {jobs}" if interrupted else jobs
            print(f"runner: {what}; see {self._directory}", file=sys.stderr)
        return FAILED_EXIT_CODE if failed else 0


def _summary_of_failure(job: Job, error: Exception) -> Summary:
    """What the run wrote about its end, or else what is known of a job that failed before it was a run."""
    written = job.run_dir / SUMMARY_FILE
    # A directory in use holds the record of another run.
    if written.is_file() and not isinstance(error, DirectoryInUseError):
        return Summary.read(written)
    exit_code = error.exit_code if isinstance(error, RunnerError) else None
    return Summary(
        run_id="",
        status="interrupted" if isinstance(error, Interrupted) else "failed",
        config_hash="",
        output_dir=str(job.run_dir),
        strategy="",
        workers=0,
        versions=versions(),
        platform=platform.platform(),
        processor=processor(),
        error=Failure(type(error).__name__, str(error), exit_code),
        overrides=job.overrides,
    )
