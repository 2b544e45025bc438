"""What the command line does with configurations: train one, sweep many, continue a run."""

from __future__ import annotations

from collections.abc import Sequence

from runner.commands.results import results_table
from runner.commands.resume import is_resume, stored_run
from runner.commands.sweep import start
from runner.config import hydra_app
from runner.config.configuration import fix_machine_values
from runner.config.hydra_app import Job
from runner.config.schema import Config
from runner.cores import usable_cores
from runner.errors import Interrupted
from runner.records.summary import Summary
from runner.sweep.sweep import Sweep


def train(arguments: Sequence[str], *, debug: bool = False) -> int:
    """Run the training command and return its exit code. debug: failed jobs of a sweep show a traceback."""
    if is_resume(arguments):
        print(results_table(continue_run(arguments)))
        return 0
    single: list[Job] = []
    planned: list[Job] = []
    sweep = Sweep(_train_job, debug=debug)

    def on_job(job: Job) -> None:
        # A single run trains after Hydra is done, so that its errors and its exit code are its own; the jobs of a
        # sweep do once all of them are frozen, unless its sweeper needs the result of one for the next.
        if job.sweep is None:
            single.append(job)
        elif job.launcher is not None:
            planned.append(job)
        else:
            sweep.run(job)

    try:
        hydra_app.launch(arguments, on_job)
    except KeyboardInterrupt as stop:
        sweep.finish(interrupted=True)
        if isinstance(stop.__cause__, Interrupted):
            raise stop.__cause__ from None
        raise
    for job in single:
        print(results_table(_train_job(job.config(), job)))
    return start(planned, arguments, debug=debug) if planned else sweep.finish()


def run(overrides: Sequence[str]) -> Summary:
    """Train what ``overrides`` describe, or continue the run that ``resume=DIR`` among them names."""
    if is_resume(overrides):
        return continue_run(overrides)
    job = hydra_app.compose(overrides)
    return _train_job(job.config(), job)


def _train_job(config: Config, job: Job) -> Summary:
    from runner.training import life

    config = fix_machine_values(config, usable_cores())
    return life.run(config, job.run_dir, overrides=job.overrides, sweep=job.sweep, resume=False)


def continue_run(arguments: Sequence[str]) -> Summary:
    """Continue a stored run from its newest checkpoint, into its own directory."""
    config, run_dir, overrides = stored_run(arguments)
    from runner.training import life

    return life.run(config, run_dir, overrides=overrides, sweep=None, resume=True)
