"""Run the jobs of a planned sweep through Hydra's launcher, in this process or in separate processes."""

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import Any, Self

from runner.commands.plugins import OPTION, plugin_words
from runner.config.hydra_sweep import FULL_ERROR, JOB, launch_planned
from runner.config.launcher import Launcher, SweepPlace, jobs_at_once, variables
from runner.engine.cluster.processes import runner_command
from runner.errors import ClusterError, Interrupted, ResourceError
from runner.plugin import pinned_references
from runner.sweeps.frozen_job import Work, run_frozen_job
from runner.sweeps.locks import SWEEP_LOCK, is_held
from runner.sweeps.outcome import ENDED, has_ended, last_ended, record_failure, recorded
from runner.sweeps.plan import FROZEN_FILE, Plan, PlannedJob
from runner.sweeps.progress import Progress
from runner.sweeps.report import SweepRecord, report_plan
from runner.system.console import DEBUG_OPTION
from runner.system.machine import usable_cores

WITH_SWEEP = "--with-sweep"  # command-line option that makes a job end when the process of its sweep ends
JOB_LOG = "job.log"  # the file with the output of a job in a separate process


@dataclass
class PlannedSweep:
    """A sweep whose lock the caller holds. Leaving the context, even by an error, reports on the sweep.

    plan: may be replaced by a plan with more jobs. debug: print the traceback of a job that fails. show: print the
    table of results. ended: called after one or more jobs have ended, in another thread if jobs run in other processes.
    record: as in :func:`~runner.sweeps.report.report_plan`. exit_code: the exit code of the whole sweep, set at the
    exit of the context.
    """

    plan: Plan
    directory: Path
    debug: bool = False
    show: bool = True
    ended: Callable[[], None] = lambda: None
    record: SweepRecord | None = None
    exit_code: int = 0

    @property
    def again(self) -> str:
        """The command that runs the remaining jobs."""
        resume = ["runner", *plugin_words(), "sweep", "resume", str(self.directory)]
        return self.plan.again or shlex.join(resume)

    def run(self, jobs: Sequence[PlannedJob], earlier: int = 0, later: int | None = 0) -> None:
        """Run the jobs that have a frozen configuration. Jobs without one had an invalid configuration.

        earlier, later: number of jobs of other batches, see :class:`~runner.sweeps.progress.Progress`. If the launcher
        fails after some jobs have ended, the other jobs are launched again. Raises ResourceError if the launcher fails
        before any job has ended, or returns without an error before all jobs have ended.
        """
        frozen = [job for job in jobs if (self.directory / job.directory / FROZEN_FILE).exists()]
        earlier += len(jobs) - len(frozen)
        remaining = list(frozen)
        while remaining:
            before = {job.number: last_ended(self.directory / job.directory) for job in remaining}
            done = earlier + len(frozen) - len(remaining)
            progress = Progress(remaining, self.directory, before, done, later, self.ended)
            failure = _launch(self.plan, self.directory, remaining, progress, self.debug)
            undone = [job for job in remaining if not has_ended(self.directory / job.directory, before[job.number])]
            if undone and (failure is None or len(undone) == len(remaining)):
                raise ResourceError(
                    f"launcher {self.plan.launcher.name} did not finish {len(undone)} of {len(remaining)} jobs "
                    f"({failure or 'no error reported'}); continue with `{self.again}`"
                ) from failure
            remaining = undone

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Report on the sweep. Raises Interrupted if a job in this process was interrupted."""
        interrupted = isinstance(error, KeyboardInterrupt | ResourceError)
        self.exit_code = report_plan(
            self.plan, self.directory, self.again, interrupted=interrupted, show=self.show, record=self.record
        )
        if isinstance(error, KeyboardInterrupt) and isinstance(error.__cause__, Interrupted):
            raise error.__cause__ from None


def run_here(sweep_dir: Path, number: int, at_once: int, *, debug: bool = False) -> None:
    """Run one job in this process; see :func:`run_frozen_job` for errors. at_once: number of simultaneous jobs."""
    plan = Plan.read(sweep_dir)

    def train(work: Work) -> None:
        from runner.training.run import run

        place = SweepPlace(sweep_dir, work.job.number, work.job.swept, work.gpus, plan.name)
        run(work.config, work.directory, overrides=work.job.overrides, sweep=place, resume=work.resume)

    run_frozen_job(planned_job(plan, number), sweep_dir, at_once, train, debug=debug)


def planned_job(plan: Plan, number: int) -> PlannedJob:
    return next(job for job in plan.jobs if job.number == number)


def task(composed: Mapping[str, Any]) -> None:
    """Run one job. Hydra's launcher calls this function for every job, in a process that the launcher chooses."""
    sweep_dir, number = Path(composed["sweep_dir"]), int(composed[JOB])
    if not composed["here"]:
        _run_in_new_process(sweep_dir, planned_job(Plan.read(sweep_dir), number), composed)
        return
    try:
        run_here(sweep_dir, number, int(composed["jobs_at_once"]), debug=composed["debug"])
    except Interrupted as stop:
        # An interruption ends the whole sweep; Hydra does not treat a KeyboardInterrupt as the failure of one job.
        raise KeyboardInterrupt from stop


def _launch(
    plan: Plan, sweep_dir: Path, jobs: Sequence[PlannedJob], progress: Progress, debug: bool
) -> Exception | None:
    """Launch jobs once; return the launcher's error or None. The outcome of each job is in its directory."""
    launcher = plan.launcher
    settings = {
        "sweep_dir": str(sweep_dir),
        # Each job derives its share of cores and GPUs from this number, on the machine on which the job runs.
        "jobs_at_once": jobs_at_once(launcher, len(jobs), usable_cores()),
        "here": launcher.shares_process,
        # The processes of joblib and of the jobs can outlive a killed sweep, but must not start further jobs.
        "joined": launcher.is_local,
        "debug": debug,
        "plugins": pinned_references(),
    }
    directories = {job.number: sweep_dir / job.directory for job in jobs}
    if launcher.shares_process:
        # Hydra would compose two configurations for every job, only to pass its number.
        return run_in_turn(lambda number: task({**settings, JOB: str(number)}), directories, launcher, progress.report)
    try:
        with progress:
            launch_planned(task, settings, directories, launcher, sweep_dir)
    except Exception as error:  # noqa: BLE001 - a launcher may raise anything; the caller decides by the outcomes
        return error
    return None


def run_in_turn(
    run: Callable[[int], None], jobs: Mapping[int, Path], launcher: Launcher, ended: Callable[[], None] = lambda: None
) -> Exception | None:
    """Call ``run`` with the number of each job, even after one raised an exception; return the first exception or None.

    jobs: number -> the job's directory. ended: called after each job. KeyboardInterrupt and SystemExit are not caught
    and end the loop.
    """
    first: Exception | None = None
    for number, directory in jobs.items():
        try:
            inside = contextlib.chdir(directory) if launcher.in_job_directory else contextlib.nullcontext()
            with variables(launcher.environment), inside:
                run(number)
        except Exception as error:  # noqa: BLE001 - a job may raise anything, and has recorded it
            first = first or error
        ended()
    return first


def _run_in_new_process(sweep_dir: Path, job: PlannedJob, composed: Mapping[str, Any]) -> None:
    """Run one job in a separate process, so that its death does not end the launcher; print the error of a failed job.

    composed: the argument of :func:`task`.
    """
    directory = sweep_dir / job.directory
    if composed["joined"]:
        _end_with_sweep(sweep_dir)
    print(job.label, file=sys.stderr, flush=True)
    before = last_ended(directory)
    plugins = [f"{OPTION}={plugin}" for plugin in composed["plugins"]]
    at_once = ["--at-once", str(composed["jobs_at_once"])]
    command = [*runner_command(), *plugins, "sweep", "job", str(sweep_dir), str(job.number), *at_once]
    command += [WITH_SWEEP] if composed["joined"] else []
    command += [DEBUG_OPTION] if composed["debug"] else []
    with (directory / JOB_LOG).open("a", encoding="utf-8") as log:
        # launch_planned() always sets this variable, so it does not show whether the user requested tracebacks.
        environment = {name: value for name, value in os.environ.items() if name != FULL_ERROR}
        code = Popen(command, stdin=DEVNULL, stdout=log, stderr=STDOUT, env=environment).wait()
    status, summary = recorded(directory)
    new = summary is not None and summary.error is not None and last_ended(directory) != before
    if status not in ENDED and not new:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        error = ClusterError(f"the process of the job {how}; see {directory / JOB_LOG}")
        record_failure(error, directory, job.overrides)
        print(f"{job.label}: error: {error}", file=sys.stderr, flush=True)
    elif summary is not None and summary.error is not None:
        print(f"{job.label}: error: {summary.error.message}", file=sys.stderr, flush=True)
    if composed["joined"]:
        _end_with_sweep(sweep_dir)


def _end_with_sweep(sweep_dir: Path) -> None:
    """End this process of the launcher if the sweep was killed, instead of waiting minutes for another job."""
    if not is_held(sweep_dir / SWEEP_LOCK):
        os._exit(1)
