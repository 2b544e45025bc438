"""What the command line does with configurations: train one, sweep many, continue a run, explain."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from runner import hydra_app
from runner.config import fix_machine_values
from runner.config_schema import Config
from runner.cores import usable_cores
from runner.errors import Interrupted
from runner.hydra_app import Job
from runner.results import results_table
from runner.resume import is_resume, stored_run
from runner.summary import Summary
from runner.sweep import Sweep


def train(arguments: Sequence[str], *, debug: bool = False) -> int:
    """Run the training command and return its exit code. debug: failed jobs of a sweep show a traceback."""
    if is_resume(arguments):
        print(results_table(continue_run(arguments)))
        return 0
    single: list[Job] = []
    sweep = Sweep(_train_job, debug=debug)

    def on_job(job: Job) -> None:
        # A single run trains after Hydra is done, so that its errors and its exit code are its own.
        if job.sweep is None:
            single.append(job)
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
    return sweep.finish()


def run(overrides: Sequence[str]) -> Summary:
    """Train what ``overrides`` describe, or continue the run that ``resume=DIR`` among them names."""
    if is_resume(overrides):
        return continue_run(overrides)
    job = hydra_app.compose(overrides)
    return _train_job(job.config(), job)


def _train_job(config: Config, job: Job) -> Summary:
    from runner import life

    config = fix_machine_values(config, usable_cores())
    return life.run(config, job.run_dir, overrides=job.overrides, sweep=job.sweep, resume=False)


def continue_run(arguments: Sequence[str]) -> Summary:
    """Continue a stored run from its newest checkpoint, into its own directory."""
    config, run_dir, limits = stored_run(arguments)
    from runner import life

    return life.run(config, run_dir, overrides=limits, sweep=None, resume=True)


def explain(arguments: Sequence[str]) -> int:
    """Print what a configuration amounts to; nothing is trained or written."""
    parser = argparse.ArgumentParser(
        prog="runner explain",
        description="Print what a configuration amounts to: parameters, cost, placement. Nothing is trained.",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for training")
    parser.add_argument("--config-dir", "-cd", type=Path, metavar="DIR", help="YAML files of your own")
    parser.add_argument("--config-path", "-cp", type=Path, metavar="DIR", help="instead of the project's")
    parser.add_argument("--config-name", "-cn", metavar="NAME", default=hydra_app.CONFIG_NAME)
    options = vars(parser.parse_intermixed_args(arguments))
    job = hydra_app.compose(options.pop("overrides"), **options)
    config = fix_machine_values(job.config(), usable_cores())
    from runner.explain import explain as explanation_of

    print(explanation_of(config))
    return 0
