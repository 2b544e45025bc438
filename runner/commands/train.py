"""Train a configuration, a sweep of configurations, or a resumed run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from runner.commands.results import results_table
from runner.commands.resume import is_resume, stored_run
from runner.commands.sweep import start
from runner.config import hydra_app
from runner.config.configuration import fix_machine_values
from runner.config.hydra_app import Job
from runner.config.schema import Config
from runner.errors import Interrupted, RunnerError
from runner.records.summary import Summary
from runner.sweep.sweep import Sweep
from runner.system.machine import usable_cores


def train(arguments: Sequence[str], *, debug: bool = False) -> int:
    """Run the training command and return its exit code. debug: failed jobs of a sweep show a traceback."""
    if is_resume(arguments):
        print(results_table(continue_run(arguments)))
        return 0
    sweep = Sweep(_train_job, debug=debug)
    try:
        jobs = hydra_app.compose_jobs(arguments, sweep.run)
    except KeyboardInterrupt as stop:
        sweep.finish(interrupted=True)
        if isinstance(stop.__cause__, Interrupted):
            raise stop.__cause__ from None
        raise
    match jobs:
        case []:
            return sweep.finish()
        case [Job(sweep=None) as job]:
            try:
                print(results_table(_train_job(job.config(), job)))
            except RunnerError:
                # Hydra created the run directory; a run that is refused leaves no empty directory.
                with suppress(OSError):
                    job.run_dir.rmdir()
                raise
            return 0
    return start(jobs, arguments, debug=debug)


def run(overrides: Sequence[str]) -> Summary:
    """Train what ``overrides`` describe, or continue the run that ``resume=DIR`` among them names."""
    if is_resume(overrides):
        return continue_run(overrides)
    job = hydra_app.compose(overrides)
    return _train_job(job.config(), job)


def _train_job(config: Config, job: Job) -> Summary:
    from runner.training.run import run

    config = fix_machine_values(config, usable_cores())
    return run(config, job.run_dir, overrides=job.overrides, sweep=job.sweep, resume=False)


def continue_run(arguments: Sequence[str]) -> Summary:
    """Continue a stored run from its newest checkpoint, into its own directory."""
    config, run_dir, overrides = stored_run(arguments)
    from runner.training.run import run

    return run(config, run_dir, overrides=overrides, sweep=None, resume=True)
