"""``runner table run``: compute the missing values of a table; training runs are the jobs of a planned sweep."""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner.commands.planned_sweep import PlannedSweep
from runner.config.configuration import fix_machine_values
from runner.config.devices import look_at, require_devices
from runner.config.hydra_app import Job, compose, compose_launcher
from runner.config.launcher import SweepPlace, jobs_at_once
from runner.config.schema import Config
from runner.data.settings import DatasetSettings
from runner.errors import ConfigError, DataError, ResourceError
from runner.plugin import pinned_references
from runner.records.summary import git_commit, versions
from runner.sweeps.freezing import freeze_job, planned
from runner.sweeps.locks import sweep_lock
from runner.sweeps.outcome import read_outcome
from runner.sweeps.plan import PLAN_FILE, Plan, PlannedJob
from runner.sweeps.report import Extra
from runner.system.files import create_directory
from runner.system.machine import usable_cores
from runner.system.text import duration, text_table
from runner.tables.cells import FAILS, HOLDS, state_of
from runner.tables.measured import data_digest, fingerprint, is_result, measured
from runner.tables.picture import as_png
from runner.tables.rendering import FORMATS, as_markdown
from runner.tables.results import Origin, RunResults, read_results, result_name, write_result
from runner.tables.sizes import counted
from runner.tables.table import BENCHMARK, COUNT, Table
from runner.training.build import build
from runner.training.memory import require_gpu_memory, require_memory

SWEEPS = Path("multirun", "table")
"""The folder of the sweeps of tables, below the working directory."""


@dataclass(frozen=True)
class TableFiles:
    """A table and what belongs to it.

    path: its file. configs: run -> its present configuration. folder: the folder of its results.
    """

    table: Table
    path: Path
    configs: Mapping[str, Config]
    folder: Path

    def results(self) -> dict[str, RunResults]:
        """Read the results of all runs."""
        return read_results(self.folder, self.table, self.configs)

    def origin(self) -> Origin:
        """Return the entries that all results of this process have."""
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        commit = git_commit(Path(__file__).parent) or ""
        return Origin(commit, digest, versions())


def run_counts(files: TableFiles, runs: Iterable[str]) -> None:
    """Compute the counts of runs without a current result, one after another; each is written at once."""
    results = files.results()
    for run in runs:
        if None not in results[run].current:
            config = files.configs[run]
            written = write_result(files.folder, run, config, counted(config, files.table.columns, files.origin()))
            print(f"{run}: {written}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Trial:
    """A run with one seed. job: its composed configuration; its directory is named after the configuration."""

    run: str
    seed: int
    config: Config
    job: Job

    @property
    def label(self) -> str:
        """The name of the trial in messages."""
        return f"{self.run} seed={self.seed}"


@dataclass
class TableSweep:
    """The sweep of a table's runs, in a fixed directory, so that a second start continues it.

    overrides: choose the launcher. config_dir: the user's YAML files. budget_s: largest estimated time of the new jobs,
    in seconds; None for no limit. digests: of the datasets that were read, by their settings.
    """

    files: TableFiles
    overrides: Sequence[str] = ()
    config_dir: Path | None = None
    budget_s: float | None = None
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        """The directory of the sweep."""
        return (SWEEPS / self.files.path.stem).absolute()

    def run(self, runs: Sequence[str]) -> int:
        """Run what is missing of the named runs and of the runs with which they are compared; return the exit code.

        Raises DirectoryInUseError if another process runs this table, ConfigError if two jobs that are timed would run
        at the same time.
        """
        create_directory(self.directory)
        with sweep_lock(self.directory):
            trials = list(self._trials(runs))
            plan = self._plan(trials)
            self._collect(trials, plan)
            missing = self._missing(trials, plan)
            chosen = self._announced(missing)
            if not chosen:
                return 0
            plan = self._frozen(chosen, plan)
            return self._train(chosen, trials, plan)

    def _trials(self, runs: Sequence[str]) -> Iterator[Trial]:
        """Yield every trial of the runs, and before them those of the runs with which they are compared."""
        table = self.files.table
        wanted = {name for run in runs for name in (run, table.runs[run].against) if name}
        launcher = compose_launcher(self.overrides)
        for run in (name for name in table.runs if name in wanted):
            for seed in table.seeds:
                job = compose([*table.overrides(run), f"seed={seed}"], config_dir=self.config_dir)
                config = job.config()
                place = SweepPlace(self.directory, 0, {"run": run, "seed": str(seed)})
                directory = self.directory / run / result_name(config, seed)
                yield Trial(run, seed, config, replace(job, run_dir=directory, sweep=place, launcher=launcher))

    def _plan(self, trials: Sequence[Trial]) -> Plan:
        """Return the plan with the jobs of earlier starts, and the launcher of this start."""
        stored = Plan.read(self.directory).jobs if (self.directory / PLAN_FILE).exists() else []
        launcher = trials[0].job.launcher
        assert launcher is not None
        at_once = jobs_at_once(launcher, len(trials), usable_cores())
        if at_once > 1 and self.files.table.measures_speed:
            raise ConfigError(
                f"hydra/launcher={launcher.name}: {at_once} jobs would run at the same time, and the table "
                f"{self.files.path.stem} measures speeds; leave out the launcher"
            )
        name = f"table {self.files.path.stem}"
        return Plan(os.getcwd(), [], launcher, list(stored), pinned_references(), name=name)

    def _job_of(self, trial: Trial, plan: Plan) -> PlannedJob | None:
        directory = planned(trial.job).directory
        return next((job for job in plan.jobs if job.directory == directory), None)

    def _missing(self, trials: Sequence[Trial], plan: Plan) -> list[Trial]:
        """Return the trials without a result, and those whose weights a trial without a result needs."""
        results = self.files.results()
        lacking = [trial for trial in trials if trial.seed not in results[trial.run].current]
        needed = {(self.files.table.runs[trial.run].against, trial.seed) for trial in lacking}
        return [
            trial
            for trial in trials
            if trial in lacking or ((trial.run, trial.seed) in needed and not self._has_ended(trial, plan))
        ]

    def _has_ended(self, trial: Trial, plan: Plan) -> bool:
        job = self._job_of(trial, plan)
        return job is not None and is_result(read_outcome(job, self.directory))

    def _announced(self, missing: Sequence[Trial]) -> list[Trial]:
        """Print the jobs with their estimated times, and what is skipped; return the trials to run.

        Raises ConfigError, naming the run, if its strategy refuses its network.
        """
        rows, chosen, left_s = [], list[Trial](), self.budget_s
        for run in dict.fromkeys(trial.run for trial in missing):
            trials = [trial for trial in missing if trial.run == run]
            try:
                seconds = self._seconds(trials[0])
            except (DataError, ResourceError) as error:
                rows.append((run, str(len(trials)), "", f"skipped: {error}"))
                continue
            except ConfigError as error:
                raise ConfigError(f"runs.{run}: {error}") from error
            taken = trials if left_s is None else trials[: int(left_s // seconds) if seconds else len(trials)]
            left_s = None if left_s is None else left_s - seconds * len(taken)
            skipped = len(trials) - len(taken)
            note = f"{skipped} left out: beyond the budget" if skipped else ""
            rows.append((run, str(len(taken)), duration(seconds * len(taken)), note))
            chosen += taken
        if rows:
            print(text_table(("run", "jobs", "about", ""), rows), file=sys.stderr, flush=True)
        return chosen

    def _seconds(self, trial: Trial) -> float:
        """Return the estimated seconds of a trial, from those of another seed, or else from a few updates.

        Raises DataError, ResourceError or ConfigError if this machine cannot run the trial.
        """
        trial.config.data.require_present()
        found = look_at(trial.config.cluster)
        config = fix_machine_values(trial.config, usable_cores())
        require_devices(config, found)
        experiment = build(config)
        require_memory(experiment)
        require_gpu_memory(experiment, found.gpus)
        others = self.files.results()[trial.run].current.values()
        if others:
            return max(result.origin.seconds for result in others)
        return fingerprint(trial.config).step_s * experiment.total_steps

    def _frozen(self, trials: Sequence[Trial], plan: Plan) -> Plan:
        """Write the configurations of new jobs, and the plan with these jobs and those of earlier starts."""
        jobs = list(plan.jobs)
        for trial in trials:
            if self._job_of(trial, plan) is None:
                place = replace(trial.job.sweep or SweepPlace(self.directory, 0), number=len(jobs))
                job = replace(trial.job, sweep=place)
                freeze_job(job, job.run_dir, planned(job))
                jobs.append(planned(job))
        plan = replace(plan, jobs=jobs)
        plan.write(self.directory)
        return plan

    def _train(self, chosen: Sequence[Trial], trials: Sequence[Trial], plan: Plan) -> int:
        """Run the chosen trials, and store each result at once if they run in this process; return the exit code."""
        jobs = [job for trial in chosen if (job := self._job_of(trial, plan)) is not None]
        own = replace(plan, jobs=[replace(job, in_grid=job in jobs) for job in plan.jobs])
        at_once = 1 if plan.launcher.shares_process else len(jobs)
        with PlannedSweep(own, self.directory, show=False) as sweep:
            for start in range(0, len(jobs), at_once):
                batch = jobs[start : start + at_once]
                sweep.run(batch, start, len(jobs) - start - len(batch))
                self._collect(trials, plan)
            sweep.extra = self._exported()
        return sweep.exit_code

    def _exported(self) -> Extra:
        """Write the table into the directory of the sweep, for its tracking record."""
        state = state_of(self.files.table, self.files.results())
        paths = []
        for form, ending in (("md", "md"), ("csv", "csv"), ("json", "json"), ("latex", "tex")):
            paths.append(self.directory / f"table.{ending}")
            paths[-1].write_text(FORMATS[form](state), encoding="utf-8")
        if all(config.tracking.pictures for config in self.files.configs.values()):
            paths.append(self.directory / "table.png")
            paths[-1].write_bytes(as_png(state))
        verdicts = [claim.verdict for claim in state.claims]
        counts = {"claims": len(verdicts), "claims_hold": verdicts.count(HOLDS), "claims_fail": verdicts.count(FAILS)}
        values = {line.cell: line.sample is not None for line in state.lines}
        metrics = {**counts, "cells": len(values), "cells_with_value": sum(values.values())}
        return Extra(paths, as_markdown(state), {name: float(count) for name, count in metrics.items()})

    def _collect(self, trials: Sequence[Trial], plan: Plan) -> None:
        """Write the results of jobs that have ended and have none yet."""
        results = self.files.results()
        for trial in trials:
            job = self._job_of(trial, plan)
            if job is None or trial.seed in results[trial.run].current:
                continue
            outcome = read_outcome(job, self.directory)
            if not is_result(outcome):
                continue
            against = self.files.table.runs[trial.run].against
            other = next((each for each in trials if (each.run, each.seed) == (against, trial.seed)), None)
            if other is not None and not self._has_ended(other, plan):
                continue
            origin = replace(self.files.origin(), data=self._digest(trial.config.data))
            directory = None if other is None else other.job.run_dir
            result = measured(outcome, trial.config, self.files.table.kind, directory, origin)
            written = write_result(self.files.folder, trial.run, trial.config, result)
            print(f"{trial.label}: {written}", file=sys.stderr, flush=True)

    def _digest(self, data: DatasetSettings) -> str:
        """Return the digest of a dataset, which is read once."""
        if str(data) not in self.digests:
            self.digests[str(data)] = data_digest(data)
        return self.digests[str(data)]


def run_table(files: TableFiles, runs: Sequence[str], sweep: TableSweep) -> int:
    """Compute the missing values of the named runs; return the exit code.

    Raises ConfigError if a run was changed after it had results, and the file states no reason, and for a benchmark.
    """
    if files.table.kind == BENCHMARK:
        raise ConfigError(
            f"{files.path}: kind: {BENCHMARK}, whose runs are timed next to other libraries, not trained; in a clone "
            f"of the repository, run `python -m benchmarks table {files.path.stem}`"
        )
    require_reasons(files, runs)
    if files.table.kind == COUNT:
        run_counts(files, runs)
        return 0
    return sweep.run(runs)


def require_reasons(files: TableFiles, runs: Iterable[str]) -> None:
    """Raise ConfigError if a run was changed after it had results, and the file states no reason."""
    results = files.results()
    for run in runs:
        if results[run].earlier and not files.table.runs[run].changed:
            raise ConfigError(
                f"{files.path}: runs.{run} has results of an earlier design, which differs in "
                f"{results[run].changed_keys}; state the reason in runs.{run}.changed, or restore the design"
            )
