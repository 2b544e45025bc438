"""``runner sweep``: resume a sweep, or print its table."""

import argparse
import itertools
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from runner.commands.planned_sweep import WITH_SWEEP, PlannedSweep, run_here
from runner.commands.plugins import OPTION
from runner.config import hydra_app
from runner.config.command_line import quoted
from runner.config.hydra_app import Job
from runner.config.launcher import BASIC
from runner.errors import ConfigError, RunnerError, SecurityError
from runner.plugin import changed_plugins, pinned_references, provenance
from runner.plugin.loading import PIN, SESSION
from runner.sweeps.freezing import freeze_batch, freeze_sweep, sweep_directory
from runner.sweeps.grid import change_of, changed_plan, merged_arguments
from runner.sweeps.locks import stop_at_end_of_sweep, sweep_lock
from runner.sweeps.outcome import ENDED, FAILED, read_outcome
from runner.sweeps.plan import PLAN_FILE, Plan
from runner.sweeps.report import best_directory, plot_plan, show_plan
from runner.system.console import add_yaml_options, parse_subcommand, verb_parser

_DESCRIPTION = """\
A sweep (runner -m KEY=V1,V2 ...) freezes the configuration of every job before the first one starts, so that later
edits of YAML files have no effect. Its directory holds plan.json, N/frozen.yaml and the run of every job N, and the
table of results as jobs.csv and jobs.md. If seed=1,2,3 repeats every combination, seeds.csv has the mean and spread
(sample standard deviation) over the n finished seeds. Jobs that run together share the cores and the GPUs. When a
sweep ends, it writes waiting records of its jobs to the tracking store; `runner sync DIR` writes the rest."""

_EXAMPLE = """\
examples:
  runner sweep status multirun/2026-01-31/12-00-00
  runner sweep resume multirun/2026-01-31/12-00-00"""

_RESUME = """\
Finished jobs are kept. Jobs that were killed or interrupted continue from their newest checkpoint in their directory;
failed jobs are tried again in the same way; the other jobs are started. Without further arguments only the frozen
configurations and the plugins of the sweep are read, and the plugins must not have changed. Arguments after DIR replace
stored arguments with the same keys, or are added. Another launcher can be chosen (hydra/launcher=joblib
hydra.launcher.n_jobs=4); another grid is refused unless --accept-changes is given. New jobs get new numbers.

A sweep is resumed in the folder in which it was started. Stored settings that can run code are not used unless they
are repeated here: a launcher other than basic and joblib, environment variables, folders of YAML files, and other keys
of Hydra."""


def main(arguments: Sequence[str]) -> int:
    options = parse_subcommand(_parser(), arguments)
    sweep_dir = Path(options.directory).absolute()
    match options.verb:
        case "resume":
            return _resume(sweep_dir, options)
        case "status":
            show_plan(Plan.read(sweep_dir), sweep_dir)
        case "best":
            print(best_directory(Plan.read(sweep_dir), sweep_dir))
        case "plot":
            print(plot_plan(Plan.read(sweep_dir), sweep_dir))
        case "job":
            if options.with_sweep:
                stop_at_end_of_sweep(sweep_dir)
            run_here(sweep_dir, options.number, options.at_once, debug=options.debug)
    return 0


def start(jobs: Sequence[Job], arguments: Sequence[str], *, debug: bool = False, show: bool = True) -> int:
    """Store the configurations of a new sweep's jobs, run the jobs, report the results, and return the exit code.

    show: whether to print the table of results. Raises ConfigError if the launcher starts other processes and the jobs
    use classes defined in this Python session.
    """
    _require_importable(jobs[0])
    sweep_dir = sweep_directory(jobs)
    with sweep_lock(sweep_dir):
        plan = freeze_sweep(jobs, arguments, pinned_references())
        with PlannedSweep(plan, sweep_dir, debug=debug, show=show) as sweep:
            sweep.run(plan.grid)
        return sweep.exit_code


def _require_importable(job: Job) -> None:
    """Raise ConfigError if the launcher starts processes and the jobs use classes defined in this Python session."""
    classes = [each for each in provenance() if each.startswith(SESSION)]
    if classes and job.launcher is not None and not job.launcher.shares_process:
        raise ConfigError(
            f"hydra/launcher={job.launcher.name} with {', '.join(classes)}: the classes were defined in this Python "
            "session, and other processes cannot import them; use hydra/launcher=basic, or a plugin"
        )


class OptimizedSweep:
    """A sweep whose sweeper chooses each batch of jobs by the results of the earlier jobs.

    Each batch is added to the plan. ended: an exit stack, which the caller closes after the last batch; the results are
    then reported, and the lock is released.
    """

    def __init__(self, arguments: Sequence[str], ended: ExitStack, *, debug: bool = False, show: bool = True) -> None:
        """debug, show: see :class:`~runner.commands.planned_sweep.PlannedSweep`."""
        self.running: PlannedSweep | None = None
        self._show = show
        self._arguments = arguments
        self._ended = ended
        self._debug = debug

    def run_batch(self, jobs: Sequence[Job]) -> list[float | RunnerError]:
        """Run the composed jobs; return, for the sweeper, the value of each job or the error that ended the job."""
        directory = sweep_directory(jobs)
        if self.running is None:
            _require_importable(jobs[0])
            self._ended.enter_context(sweep_lock(directory))
            plan = freeze_sweep(jobs, self._arguments, pinned_references())
            sweep = PlannedSweep(plan, directory, debug=self._debug, show=self._show)
            self.running = self._ended.enter_context(sweep)
        else:
            self.running.plan = freeze_batch(self.running.plan, jobs, directory)
        plan = self.running.plan
        batch = plan.jobs[-len(jobs) :]
        later = None if jobs[0].trials is None else max(0, jobs[0].trials - len(plan.jobs))
        self.running.run(batch, len(plan.jobs) - len(jobs), later)
        return [read_outcome(job, directory).value_or_error() for job in batch]


def _resume(sweep_dir: Path, options: argparse.Namespace) -> int:
    Plan.read(sweep_dir)  # raises an error for a directory without a sweep, before a lock is created there
    with sweep_lock(sweep_dir):
        plan = Plan.read(sweep_dir)
        # A stored plan must not choose the working directory.
        if Path(plan.folder).resolve() != Path.cwd().resolve():
            raise ConfigError(
                f"{sweep_dir}: the sweep was started in {plan.folder!r}, to which its relative paths refer; the "
                f"working directory is {str(Path.cwd())!r}; change it and resume the sweep"
            )
        if plan.again:
            raise ConfigError(f"{sweep_dir}: the jobs belong to a table, which stores their results; use: {plan.again}")
        _require_plugins(plan, sweep_dir)
        of_hydra = {name: getattr(options, name, None) for name in ("config_dir", "config_path", "config_name")}
        pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in of_hydra.items() if value is not None)
        given = [*options.overrides, *itertools.chain(*pairs)]
        if given or options.accept_changes:
            plan = _with_grid(plan, sweep_dir, given, accept=options.accept_changes)
        else:
            _require_plain_launcher(plan, sweep_dir)
        done = ENDED if options.retry_failed else (*ENDED, FAILED)
        jobs = [job for job in plan.grid if read_outcome(job, sweep_dir).status not in done]
        with PlannedSweep(plan, sweep_dir, debug=options.debug) as sweep:
            sweep.run(jobs)
        return sweep.exit_code


def _require_plain_launcher(plan: Plan, sweep_dir: Path) -> None:
    """Raise SecurityError if the plan has launcher settings or environment variables that can run code."""
    foreign = ", ".join(map(repr, plan.launcher.foreign_settings()))
    if foreign:
        raise SecurityError(
            f"{sweep_dir / PLAN_FILE} has {foreign}: such settings can run code and are not taken from a stored "
            "sweep; if you trust them, repeat them after the directory as on the command line that started the "
            f"sweep: runner sweep resume {shlex.quote(str(sweep_dir))} KEY=VALUE ..."
        )


def _require_plugins(plan: Plan, sweep_dir: Path) -> None:
    """Raise ConfigError unless the plugins of the sweep are loaded, from unchanged sources.

    The command line must name the plugins, because a stored plan never loads code.
    """
    recorded = dict(reference.split(PIN, 1) for reference in plan.plugins)
    for changed in changed_plugins(recorded):
        raise ConfigError(f"{sweep_dir}: {changed}; expected the plugins with which the sweep was started")
    missing = [reference for reference in recorded if reference not in provenance()]
    if missing:
        words = [*itertools.chain(*((OPTION, reference) for reference in missing)), "sweep", "resume", str(sweep_dir)]
        raise ConfigError(f"{sweep_dir}: plugins of the sweep are missing; use: runner {shlex.join(words)}")


def _with_grid(plan: Plan, sweep_dir: Path, overrides: Sequence[str], *, accept: bool) -> Plan:
    """Compose the sweep again with ``overrides``, and return the changed plan. accept: allow a different grid."""
    shown = " ".join([*overrides, *(["--accept-changes"] if accept else [])])
    if plan.sweeper != BASIC:
        raise ConfigError(
            f"{shown}: sweeper {plan.sweeper} chose the jobs of this sweep by their results, so its grid "
            "cannot be composed again; resume it without arguments after the directory, or start another sweep"
        )
    arguments = merged_arguments(plan.arguments, overrides)
    jobs = hydra_app.compose_jobs([*arguments, f"hydra.sweep.dir={quoted(str(sweep_dir))}"], _refuse_batch)
    if not jobs or any(job.launcher is None for job in jobs):
        raise ConfigError(f"{shown}: expected overrides of a sweep with Hydra's basic sweeper")
    try:
        change = change_of(plan, jobs, sweep_dir)
        if not accept:
            change.require_none()
        return changed_plan(plan, change, arguments, sweep_dir, pinned_references())
    finally:
        # Hydra creates a directory for each job, even if the plan assigns another one to it: remove empty ones.
        for job in jobs:
            if job.run_dir.is_dir() and not any(job.run_dir.iterdir()):
                job.run_dir.rmdir()


def _refuse_batch(jobs: Sequence[Job]) -> list[float | RunnerError]:
    raise ConfigError(f"hydra/sweeper={jobs[0].sweeper}: expected Hydra's basic sweeper, as at the start of this sweep")


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser("sweep", _DESCRIPTION, _EXAMPLE)
    parser.add_argument("--debug", action="store_true", help="show the traceback of a job that fails")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{resume,status,best,plot}")
    resume = verbs.add_parser("resume", help="run the remaining jobs of a sweep", description=_RESUME)
    resume.add_argument("directory", metavar="DIR", help="directory of the sweep")
    resume.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="replaces a stored override, or is added")
    resume.add_argument(
        "--retry-failed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also run failed jobs again, besides those that were killed, interrupted or never started",
    )
    resume.add_argument(
        "--accept-changes", action="store_true", help="compose the grid again: add its new jobs, leave out removed ones"
    )
    add_yaml_options(resume, ", as at the start", primary=True)
    for name, what in (
        ("status", "print the table of a sweep, which may be running"),
        ("best", "print the directory of the best job"),
        ("plot", "draw the metric over each swept key, in DIR/sweep.png"),
    ):
        verbs.add_parser(name, help=what).add_argument("directory", metavar="DIR", help="directory of the sweep")
    job = verbs.add_parser("job", description="One job of a planned sweep (internal).")
    job.add_argument("directory", metavar="DIR", help="directory of the sweep")
    job.add_argument("number", type=int, help="number of the job")
    job.add_argument(WITH_SWEEP, action="store_true", help="end the job when the process of its sweep ends")
    job.add_argument("--at-once", type=int, required=True, metavar="N", help="number of jobs that share the machine")
    return parser
