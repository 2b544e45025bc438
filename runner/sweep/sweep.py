"""Run the jobs of a sweep in this process: planned jobs in order, or jobs that a Hydra sweeper composes one by one."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from runner.config.hydra_app import Job
from runner.config.launcher import Launcher, variables
from runner.config.schema import Config
from runner.errors import Interrupted, RunnerError
from runner.records.summary import Summary
from runner.sweep.outcome import FAILURE_FILE, Outcome, note_failure, recorded
from runner.sweep.plan import job_label
from runner.sweep.report import report
from runner.system.console import print_error


def run_in_turn(run: Callable[[int], None], jobs: Mapping[int, Path], launcher: Launcher) -> Exception | None:
    """Call ``run`` with the number of each job; if calls raise exceptions, continue, and return the first of these.

    jobs: number -> the job's directory. KeyboardInterrupt and SystemExit are not caught and end the loop.
    """
    first: Exception | None = None
    for number, directory in jobs.items():
        try:
            inside = contextlib.chdir(directory) if launcher.in_job_directory else contextlib.nullcontext()
            with variables(launcher.environment), inside:
                run(number)
        except Exception as error:  # noqa: BLE001 - a job may raise anything, and has recorded it
            first = first or error
    return first


class Sweep:
    """A sweep whose jobs Hydra passes to ``run`` one by one."""

    def __init__(self, train: Callable[[Config, Job], Summary], *, debug: bool = False) -> None:
        self._train = train
        self._debug = debug
        self._directory: Path | None = None
        self._config: Config | None = None
        self._outcomes: list[Outcome] = []

    def run(self, job: Job) -> None:
        """Train one job and record its outcome.

        A RunnerError is printed but not raised, because Hydra would print it again and not start the next batch of
        jobs. Other errors are defects and are raised. An interruption ends the whole sweep: it is raised as
        KeyboardInterrupt, which Hydra does not treat as the failure of one job.
        """
        assert job.sweep is not None
        self._directory = job.sweep.directory
        label = job_label(job.sweep.number, job.sweep.swept)
        print(label, file=sys.stderr, flush=True)
        (job.run_dir / FAILURE_FILE).unlink(missing_ok=True)
        try:
            self._config = config = job.config()
            self._train(config, job)
        except Interrupted as stop:
            note_failure(stop, job.run_dir, job.overrides)
            raise KeyboardInterrupt from stop
        except Exception as error:
            print_error(error, what=label, debug=self._debug)
            note_failure(error, job.run_dir, job.overrides)
            if not isinstance(error, RunnerError):
                raise
        finally:
            status, summary = recorded(job.run_dir)
            self._outcomes.append(Outcome(job.sweep.number, job.overrides, job.sweep.swept, status, summary))

    def finish(self, *, interrupted: bool = False) -> int:
        """Print and store the table of jobs, end the tracking record of the sweep, and return the exit code."""
        if self._directory is None:
            return 0
        return report(self._outcomes, self._config, self._directory, interrupted=interrupted)
