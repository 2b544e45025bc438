"""``runner table run``: compute the missing values of a table. Runs that train are jobs of one resumable sweep."""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from runner.commands.planned_sweep import PlannedSweep
from runner.commands.plugins import plugin_words
from runner.commands.table_files import TableFiles, current
from runner.config.configuration import fix_machine_values, from_composed
from runner.config.devices import found_gpus, require_devices
from runner.config.hydra_app import Job, RunComposer, compose_launcher
from runner.config.launcher import SweepPlace, jobs_at_once
from runner.config.schema import Config
from runner.data.settings import DatasetSettings
from runner.errors import ConfigError, ResourceError
from runner.plugin import pinned_references
from runner.sweeps.freezing import freeze_job, planned
from runner.sweeps.locks import sweep_lock, table_lock
from runner.sweeps.outcome import Outcome, read_outcome
from runner.sweeps.plan import PLAN_FILE, Plan, PlannedJob
from runner.sweeps.report import SweepRecord
from runner.system.files import create_directory, writing
from runner.system.machine import usable_cores
from runner.system.text import duration, text_table
from runner.tables.cells import FAILS, HOLDS
from runner.tables.checking import estimated_s
from runner.tables.measured import (
    begun,
    count_sizes,
    data_digest,
    data_digests,
    is_result,
    lacking_data,
    measured,
    simulated_times,
)
from runner.tables.picture import as_png
from runner.tables.rendering import FORMATS, as_markdown
from runner.tables.results import BEGUN, BEGUN_FILE, RunResults, folder_of, result_name, write_result
from runner.tables.table import BENCHMARK, COMPUTED, COUNT, SPEEDS
from runner.training.build import build
from runner.training.experiment import Experiment
from runner.training.memory import require_gpu_memory, require_memory


def run_computed(files: TableFiles, runs: Iterable[str]) -> None:
    """Compute the missing counts or simulated times of runs; write each run's result before the next run."""
    results, sizes = files.results(), {column.size for column in files.table.columns.values() if column.read}
    for run in runs:
        known = results[run].current.get(None)
        if known is None or sizes - known.values.keys():
            config, columns, origin = files.configs[run], files.table.columns, files.origin()
            count = files.table.kind == COUNT
            try:
                found = count_sizes(config, columns, origin) if count else simulated_times(config, origin)
            except ConfigError as error:
                raise ConfigError(f"runs.{run}: {error}") from error
            written = write_result(files.folder, run, config, found)
            print(f"{run}: {written}", file=sys.stderr, flush=True)


@dataclass(frozen=True, eq=False)
class Trial:
    """A run with one seed. job: its job in the sweep; the job's directory is named after the configuration."""

    run: str
    seed: int
    config: Config
    job: Job

    @property
    def label(self) -> str:
        return f"{self.run} seed={self.seed}"


@dataclass
class TableSweep:
    """The sweep of a table's runs. Its directory is fixed, so that a second start continues the sweep.

    overrides: settings of Hydra's launcher. config_dir: folder of the user's YAML files. budget_s: limit of the sum of
    the jobs' estimated seconds; None for no limit. digests: settings of a dataset (text) -> digest of its examples.
    debug: print the traceback of a job that fails.
    """

    files: TableFiles
    overrides: Sequence[str] = ()
    config_dir: Path | None = None
    budget_s: float | None = None
    digests: dict[str, str] = field(default_factory=dict)
    debug: bool = False

    @property
    def directory(self) -> Path:
        """The directory of the sweep, below the working directory."""
        return Path("multirun", "table", self.files.path.stem).absolute()

    def run(self, runs: Sequence[str]) -> int:
        """Train the missing trials of the named runs and of the runs they are compared with; return the exit code.

        Raises DirectoryInUseError if another process runs this table, ConfigError if the table measures speeds and
        jobs would run at the same time, ResourceError if the directory of the sweep cannot be created.
        """
        if not runs:
            return 0  # no run exists for the chosen cells, and the table states why
        with writing(f"in {self.directory}", "change to a folder that can be written"):
            create_directory(self.directory)
        with sweep_lock(self.directory):
            trials = list(self._trials(runs))
            plan = self._plan(trials)
            self._collect(trials, plan)
            missing = self._missing(trials, plan)
            chosen = self._announced(missing)
            plan = self._frozen(chosen, plan)
            return self._train(chosen, trials, plan)

    def _trials(self, runs: Sequence[str]) -> Iterator[Trial]:
        """Yield every trial of the runs and of the runs they are compared with, in the order of the table."""
        table = self.files.table
        wanted = {name for run in runs for name in (run, table.runs[run].against) if name}
        launcher, composer = compose_launcher(self.overrides), RunComposer(self.config_dir)
        for run in (name for name in table.runs if name in wanted):
            for seed in table.seeds:
                overrides = [*table.overrides(run), f"seed={seed}"]
                composed = composer.compose(overrides)
                config = from_composed(composed, overrides)
                place = SweepPlace(self.directory, 0, {"run": run, "seed": str(seed)})
                directory = self.directory / run / result_name(config, seed)
                yield Trial(run, seed, config, Job(composed, overrides, directory, place, launcher))

    def _plan(self, trials: Sequence[Trial]) -> Plan:
        """Return a plan with the jobs of earlier commands and the launcher of this command."""
        stored = Plan.read(self.directory).jobs if (self.directory / PLAN_FILE).exists() else []
        launcher = trials[0].job.launcher
        assert launcher is not None
        at_once = jobs_at_once(launcher, len(trials), usable_cores())
        if at_once > 1 and any(column.read in SPEEDS for column in self.files.table.columns.values()):
            raise ConfigError(
                f"hydra/launcher={launcher.name}: {at_once} jobs would run at the same time, and the table "
                f"{self.files.path.stem} measures speeds; leave out the launcher"
            )
        name = f"table {self.files.path.stem}"
        return Plan(os.getcwd(), [], launcher, list(stored), pinned_references(), name=name, again=self._command())

    def _command(self) -> str:
        given = {"--config-dir": self.config_dir}
        if self.files.folder != folder_of(self.files.path):
            given["--results"] = self.files.folder.parent
        words = [text for name, path in given.items() if path is not None for text in (name, str(path))]
        return shlex.join(["runner", *plugin_words(), "table", "run", self.files.path.stem, *words])

    def _job_of(self, trial: Trial, plan: Plan) -> PlannedJob | None:
        directory = planned(trial.job).directory
        return next((job for job in plan.jobs if job.directory == directory), None)

    def _missing(self, trials: Sequence[Trial], plan: Plan) -> list[Trial]:
        """Return the trials without a result, and the unfinished trials with which they are compared."""
        results = self.files.results()
        lacking = {(trial.run, trial.seed) for trial in trials if self._lacks(trial, results)}
        needed = {(self.files.table.runs[run].against, seed) for run, seed in lacking}
        return [
            trial
            for trial in trials
            if (trial.run, trial.seed) in lacking
            or ((trial.run, trial.seed) in needed and self._outcome(trial, plan) is None)
        ]

    def _lacks(self, trial: Trial, results: Mapping[str, RunResults]) -> bool:
        """Return whether a trial has no result, or was compared with weights that its reference no longer has."""
        found = results[trial.run].current.get(trial.seed)
        against = self.files.table.runs[trial.run].against
        reference = results[against].current.get(trial.seed) if against else None
        return found is None or (reference is not None and found.against != reference.origin.weights_sha256)

    def _outcome(self, trial: Trial, plan: Plan) -> Outcome | None:
        """Return the outcome of a trial's job; None if there is no result (:func:`is_result`)."""
        job = self._job_of(trial, plan)
        outcome = None if job is None else read_outcome(job, self.directory)
        return outcome if outcome is not None and is_result(outcome) else None

    def _announced(self, missing: Sequence[Trial]) -> list[Trial]:
        """Print the jobs with their estimated times and the reasons for skipped jobs; return the trials to run.

        Raises ConfigError, naming the run, if its configuration cannot be used on this machine.
        """
        rows, chosen, left_s = [], list[Trial](), self.budget_s
        for run in dict.fromkeys(trial.run for trial in missing):
            trials = [trial for trial in missing if trial.run == run]
            try:
                seconds, lacking = self._seconds(trials[0])
            except ResourceError as error:
                rows.append((run, str(len(trials)), "", f"skipped: {error}"))
                continue
            except ConfigError as error:
                raise ConfigError(f"runs.{run}: {error}") from error
            if seconds is not None:
                self.files.write_estimate(run, seconds)
            if lacking or seconds is None:
                time = "" if seconds is None else duration(seconds * len(trials))
                rows.append((run, str(len(trials)), time, f"skipped: {lacking}"))
                continue
            taken = trials if left_s is None else trials[: int(left_s // seconds) if seconds else len(trials)]
            left_s = None if left_s is None else left_s - seconds * len(taken)
            skipped = len(trials) - len(taken)
            note = f"{skipped} skipped: over the budget" if skipped else ""
            rows.append((run, str(len(taken)), duration(seconds * len(taken)), note))
            chosen += taken
        if rows:
            print(
                text_table(("run", "jobs", "estimated time without evaluations", ""), rows), file=sys.stderr, flush=True
            )
        return chosen

    def _seconds(self, trial: Trial) -> tuple[float | None, str]:
        """Return the estimated seconds of a trial, and the reason why it cannot run here ("" if it can).

        The reason is missing data or too little memory. The estimate is the longest time of the run's other seeds.
        Without other seeds, :func:`estimated_s` returns the estimate. Raises ResourceError or ConfigError if this
        machine lacks a device of the trial, or memory for its variables.
        """
        lacking = lacking_data(trial.config)
        found = found_gpus(trial.config.cluster)
        config = fix_machine_values(trial.config, usable_cores())
        require_devices(config, found)
        experiment = build(config)

        def require_fit(experiment: Experiment) -> None:
            require_memory(experiment)
            require_gpu_memory(experiment, found.gpus)

        try:
            require_fit(experiment)
        except ResourceError as error:
            lacking = "; ".join(filter(None, (lacking, str(error))))
        others = self.files.results()[trial.run].current.values()
        if others:
            return max(result.origin.seconds for result in others), lacking
        return estimated_s(experiment, require_fit, synthetic=bool(lacking)), lacking

    def _frozen(self, trials: Sequence[Trial], plan: Plan) -> Plan:
        """Write the configurations of new jobs; write and return the plan of the new and the earlier jobs."""
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
        """Run the chosen trials, and store each result as its job ends; return the exit code."""
        jobs = {trial: job for trial in chosen if (job := self._job_of(trial, plan)) is not None}
        ours = [self._job_of(trial, plan) for trial in trials]
        own = replace(plan, jobs=[replace(job, in_grid=job in ours) for job in plan.jobs])
        if not jobs and (not own.grid or self._is_exported()):
            return 0
        at_once = 1 if plan.launcher.shares_process else max(1, len(jobs))
        ended = partial(self._collect, trials, plan)
        with PlannedSweep(own, self.directory, debug=self.debug, show=False, ended=ended) as sweep:
            sweep.record = SweepRecord()
            for start in range(0, len(jobs), at_once):
                batch = dict(list(jobs.items())[start : start + at_once])
                for trial in batch:
                    self._begin(trial)
                sweep.run(list(batch.values()), start, len(jobs) - start - len(batch))
            self._collect(trials, plan)
            sweep.record = self._exported()
        return sweep.exit_code

    def _begin(self, trial: Trial) -> None:
        """Before a run starts, store its data digests, its machine and values of its first updates in its directory.

        Raises ConfigError if the job was begun with another program, machine or data, because a continued run would mix
        old and new values.
        """
        path = trial.job.run_dir / BEGUN_FILE
        now = begun(trial.config, data_digests(trial.config, self._digest), self.files.origin())
        if not path.exists():
            BEGUN.write(path, now)
            return
        before = BEGUN.read(path)
        changed = [name for name in ("data", "machine", "first_steps") if getattr(before, name) != getattr(now, name)]
        if changed:
            raise ConfigError(
                f"{trial.job.run_dir}: the run of {trial.label} was started with another program, machine or data "
                f"({', '.join(changed)} differ); delete the directory to run it again from its first step"
            )

    def _is_exported(self) -> bool:
        """Return whether the exported table in the directory of the sweep is up to date."""
        path = self.directory / "table.json"
        return path.exists() and path.read_text(encoding="utf-8") == FORMATS["json"](current(self.files))

    def _exported(self) -> SweepRecord:
        """Write the table into the directory of the sweep; return the contents of the sweep's tracking record."""
        state = current(self.files)
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
        numbers = {name: float(count) for name, count in metrics.items()}
        return SweepRecord(paths, as_markdown(state), numbers)

    def _collect(self, trials: Sequence[Trial], plan: Plan) -> None:
        """Write the results of jobs that have ended and whose trials lack a result."""
        results = self.files.results()
        for trial in trials:
            job = self._job_of(trial, plan)
            if job is None or not self._lacks(trial, results):
                continue
            outcome = read_outcome(job, self.directory)
            if not is_result(outcome):
                continue
            against = self.files.table.runs[trial.run].against
            other = next((each for each in trials if (each.run, each.seed) == (against, trial.seed)), None)
            reference = None if other is None else self._outcome(other, plan)
            if other is not None and reference is None:
                continue
            origin = BEGUN.read(trial.job.run_dir / BEGUN_FILE)
            result = measured(outcome, trial.config, self.files.table.kind, reference, origin)
            written = write_result(self.files.folder, trial.run, trial.config, result)
            print(f"{trial.label}: {written}", file=sys.stderr, flush=True)

    def _digest(self, data: DatasetSettings) -> str:
        """Return the digest of a dataset. Digests are cached, so that each dataset is read only once."""
        if str(data) not in self.digests:
            self.digests[str(data)] = data_digest(data)
        return self.digests[str(data)]


def run_table(files: TableFiles, runs: Sequence[str], sweep: TableSweep) -> int:
    """Compute the missing values of the named runs; return the exit code.

    Raises ConfigError if the table is a benchmark, if settings of the launcher or a budget are given for a table that
    trains nothing, or if a run with results was changed and the file states no reason.
    """
    if files.table.kind == BENCHMARK:
        raise ConfigError(
            f"{files.path}: kind: {BENCHMARK}, whose runs are timed next to other libraries, not trained; in a clone "
            f"of the repository, run `python -m benchmarks table {files.path.stem}`"
        )
    require_reasons(files, runs)
    given = [*sweep.overrides, *(["--budget"] if sweep.budget_s is not None else [])]
    if files.table.kind in COMPUTED and given:
        raise ConfigError(
            f"{' '.join(given)}: the runs of a table of the kind {files.table.kind} are computed, not trained; "
            "leave out settings of the launcher and --budget"
        )
    with table_lock(files.folder):
        if files.table.kind in COMPUTED:
            run_computed(files, runs)
            return 0
        return sweep.run(runs)


def require_reasons(files: TableFiles, runs: Iterable[str]) -> None:
    """Raise ConfigError if a run was changed after it had results, and the file states no reason."""
    results = files.results()
    for run in dict.fromkeys(name for each in runs for name in (files.table.runs[each].against, each) if name):
        if results[run].earlier and not files.table.runs[run].changed:
            raise ConfigError(
                f"{files.path}: runs.{run} has stored results of another configuration, with other "
                f"{results[run].changed_keys}; state the reason in runs.{run}.changed, or restore these settings"
            )
