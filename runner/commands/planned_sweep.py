"""Run the jobs of a planned sweep through Hydra's launcher, in this process or in separate ones."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.commands.plugins import OPTION
from runner.config.hydra_sweep import FULL_ERROR, JOB, launch_planned
from runner.config.launcher import JOBLIB, SweepPlace, jobs_at_once
from runner.engine.cluster.processes import runner_command
from runner.errors import ClusterError, Interrupted, ResourceError, RunnerError
from runner.plugin import pinned_references
from runner.sweep.frozen_job import Work, run_frozen_job
from runner.sweep.locks import sweep_is_running
from runner.sweep.outcome import ENDED, last_ended, note_failure, recorded
from runner.sweep.plan import Plan, PlannedJob
from runner.sweep.report import report_plan
from runner.sweep.sweep import run_in_turn
from runner.system.console import DEBUG_OPTION
from runner.system.machine import usable_cores

JOB_LOG = "job.log"
"""The file with the output of a job in a separate process."""


def run_planned(plan: Plan, sweep_dir: Path, jobs: Sequence[PlannedJob], *, debug: bool = False) -> int:
    """Run ``jobs`` of a sweep, then report on the whole sweep; return the exit code.

    The caller holds the lock of the sweep. Raises Interrupted, after the report, if a job in this process was
    interrupted; ResourceError if the launcher returns before all jobs have ended.
    """
    try:
        _run_all(plan, sweep_dir, jobs, debug)
    except KeyboardInterrupt as stop:
        report_plan(plan, sweep_dir, interrupted=True)
        if isinstance(stop.__cause__, Interrupted):
            raise stop.__cause__ from None
        raise
    except ResourceError:
        report_plan(plan, sweep_dir, interrupted=True)
        raise
    return report_plan(plan, sweep_dir)


def run_here(sweep_dir: Path, number: int, at_once: int, *, debug: bool = False) -> None:
    """Run one job in this process; see :func:`run_frozen_job` for errors. at_once: number of jobs at once."""

    def train(work: Work) -> None:
        from runner.training.run import run

        place = SweepPlace(sweep_dir, work.job.number, work.job.swept, work.gpus)
        run(work.config, work.directory, overrides=work.job.overrides, sweep=place, resume=work.resume)

    run_frozen_job(planned_job(sweep_dir, number), sweep_dir, at_once, train, debug=debug)


def planned_job(sweep_dir: Path, number: int) -> PlannedJob:
    """Return the job with this number in the stored plan."""
    return next(job for job in Plan.read(sweep_dir).jobs if job.number == number)


def task(composed: Mapping[str, Any]) -> None:
    """Run one job. Hydra's launcher calls this for every job, in a process of its choice."""
    sweep_dir, number = Path(composed["sweep_dir"]), int(composed[JOB])
    if not composed["here"]:
        _run_in_new_process(sweep_dir, planned_job(sweep_dir, number), composed)
        return
    try:
        run_here(sweep_dir, number, int(composed["jobs_at_once"]), debug=composed["debug"])
    except Interrupted as stop:
        # An interruption ends the whole sweep; Hydra does not treat a KeyboardInterrupt as the failure of one job.
        raise KeyboardInterrupt from stop


def _run_all(plan: Plan, sweep_dir: Path, jobs: Sequence[PlannedJob], debug: bool) -> None:
    """Launch jobs until all have ended; if a job makes the launcher fail, launch the remaining jobs again."""
    remaining = list(jobs)
    while remaining:
        before = {job.number: last_ended(sweep_dir / job.directory) for job in remaining}
        failure = _launch(plan, sweep_dir, remaining, debug)
        undone = [job for job in remaining if not _has_ended(sweep_dir / job.directory, before[job.number])]
        if undone and (failure is None or len(undone) == len(remaining)):
            raise ResourceError(
                f"launcher {plan.launcher.name} did not finish {len(undone)} of {len(remaining)} jobs "
                f"({failure or 'no error reported'}); continue with `runner sweep resume {shlex.quote(str(sweep_dir))}`"
            ) from failure
        remaining = undone


def _launch(plan: Plan, sweep_dir: Path, jobs: Sequence[PlannedJob], debug: bool) -> Exception | None:
    """Launch jobs once; return the launcher's error or None. The outcome of each job is in its directory."""
    launcher = plan.launcher
    settings = {
        "sweep_dir": str(sweep_dir),
        # The cores and GPUs that the jobs share are known only on the machine that runs a job.
        "jobs_at_once": jobs_at_once(launcher, len(jobs), usable_cores()),
        "here": launcher.shares_process,
        # Processes of joblib can outlive the sweep and must then start no more jobs.
        "joined": launcher.name == JOBLIB,
        "debug": debug,
        "plugins": pinned_references(),
    }
    directories = {job.number: sweep_dir / job.directory for job in jobs}
    if launcher.shares_process:
        # Hydra would compose two configurations for every job, only to pass its number.
        return run_in_turn(lambda number: task({**settings, JOB: str(number)}), directories, launcher)
    try:
        launch_planned(task, settings, directories, launcher, sweep_dir)
    except Exception as error:  # noqa: BLE001 - a launcher may raise anything; the caller decides by the outcomes
        return error
    return None


def _has_ended(directory: Path, before: int | None) -> bool:
    """Return whether a job is finished, or has ended again. before: the time of its previous end, if any."""
    return recorded(directory)[0] in ENDED or last_ended(directory) not in (None, before)


def _run_in_new_process(sweep_dir: Path, job: PlannedJob, composed: Mapping[str, Any]) -> None:
    """Run one job in a separate process, whose death does not end the launcher; if the job fails, print its error.

    composed: the settings of :func:`_launch`.
    """
    directory = sweep_dir / job.directory
    if composed["joined"] and not sweep_is_running(sweep_dir):
        return
    print(job.label, file=sys.stderr, flush=True)
    plugins = [f"{OPTION}={plugin}" for plugin in composed["plugins"]]
    at_once = ["--at-once", str(composed["jobs_at_once"])]
    command = [*runner_command(), *plugins, "sweep", "job", str(sweep_dir), str(job.number), *at_once]
    command += [DEBUG_OPTION] if composed["debug"] else []
    with (directory / JOB_LOG).open("a", encoding="utf-8") as log:
        # Hydra always sets this variable here, so it does not show whether the user requested tracebacks.
        environment = {name: value for name, value in os.environ.items() if name != FULL_ERROR}
        code = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        ).wait()
    status, summary = recorded(directory)
    if status not in ENDED and (summary is None or summary.error is None):
        error = _killed(code, directory)
        note_failure(error, directory, job.overrides)
        print(f"{job.label}: error: {error}", file=sys.stderr, flush=True)
    elif summary is not None and summary.error is not None:
        print(f"{job.label}: error: {summary.error.message}", file=sys.stderr, flush=True)


def _killed(code: int, directory: Path) -> RunnerError:
    """Return the error of a job that ended without recording one."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return ClusterError(f"the process of the job {how}; see {directory / JOB_LOG}")
