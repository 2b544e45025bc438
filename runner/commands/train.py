"""Train a configuration or a sweep of configurations, or continue a stored run (``resume=DIR``); print the results."""

import dataclasses
import itertools
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from runner.commands.plugins import plugin_words, require_session_classes
from runner.commands.simulated_text import simulated_text
from runner.commands.submission import submit_run
from runner.config import hydra_app
from runner.config.check import check
from runner.config.command_line import quoted
from runner.config.configuration import LIMITS, fix_machine_values, from_plain, load_stored
from runner.config.hydra_app import Job, overridden
from runner.config.schema import AUTO, FILLED_IN, Config
from runner.engine.graph.device import CPU
from runner.errors import ConfigError
from runner.records.run_directory import CONFIG_FILE, RUN_FILE
from runner.records.summary import Summary, in_order
from runner.system.machine import usable_cores
from runner.system.redaction import redact_overrides
from runner.system.text import aligned, rate, significant

if TYPE_CHECKING:
    from runner.callback import Callback

KEY = "resume"
RUN_DIR = "hydra.run.dir="

MOVABLE = (
    *LIMITS,
    *("train.patience", "train.min_delta", "train.microbatches", "train.restarts"),
    *("callbacks", "parallelism", "cluster"),
)
"""Keys that may change in a resumed run: its length, early stopping, restarts, callbacks, and division of work."""

_OF_THE_DEVICE = ("device_taken", "gpus", "collectives")
"""Cluster keys that are filled in again if the resuming command changes the device and does not set these keys."""


def is_resume(arguments: Sequence[str]) -> bool:
    return any(argument.startswith(f"{KEY}=") and argument != f"{KEY}=null" for argument in arguments)


def stored_run(arguments: Sequence[str]) -> tuple[Config, Path, list[str]]:
    """Return the configuration to continue with, the run's directory and the overrides.

    If the strategy changes, cluster keys that the user left null are filled in again; keys that a command line set keep
    their values. If the device changes, GPUs are assigned again. Raises ConfigError if the directory holds no stored
    run, or if a key that is not in :data:`MOVABLE` is overridden.
    """
    directories = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{KEY}=")]
    overrides = [argument for argument in arguments if not argument.startswith(f"{KEY}=")]
    if len(directories) != 1:
        raise ConfigError(f"{KEY} is given {len(directories)} times; expected once")
    run_dir = Path(directories[0]).absolute()
    if not (run_dir / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{KEY}={directories[0]}: {run_dir} holds no {CONFIG_FILE}: not the directory of a run. If a run was "
            "killed before it stored its configuration, start it again with its original command"
        )
    require_session_classes(run_dir)
    return _continued(load_stored(run_dir / CONFIG_FILE), overrides), run_dir, overrides


def _continued(stored: Config, overrides: Sequence[str]) -> Config:
    *first, last = MOVABLE
    refusal = (
        f"a resumed run uses its stored configuration; besides {KEY}=DIR only {', '.join(first)} and {last} "
        "may be given"
    )
    plain = overridden(_with_later_keys(stored), overrides, MOVABLE, refusal)
    cluster, named = plain["cluster"], {override.partition("=")[0].removeprefix("cluster.") for override in overrides}
    cluster["filled_in"] = [key for key in cluster["filled_in"] or () if key not in named]
    if plain["parallelism"] != dataclasses.asdict(stored.parallelism):
        cluster |= dict.fromkeys(cluster["filled_in"])
    if "device" in named:
        cluster |= dict.fromkeys(key for key in _OF_THE_DEVICE if key not in named)
    config = from_plain(plain)
    check(config)
    return fix_machine_values(config, usable_cores())


def _with_later_keys(stored: Config) -> Config:
    """Add values that earlier versions lacked: CPU for ``device_taken``, FILLED_IN for ``filled_in``."""
    cluster = stored.cluster
    if cluster.device == AUTO and cluster.device_taken is None:
        cluster = dataclasses.replace(cluster, device_taken=CPU)
    if cluster.filled_in is None:
        cluster = dataclasses.replace(cluster, filled_in=list(FILLED_IN))
    return dataclasses.replace(stored, cluster=cluster)


def train(arguments: Sequence[str], *, debug: bool = False) -> int:
    """Run the training command and return its exit code. debug: print tracebacks of failed jobs of a sweep."""
    if is_resume(arguments):
        stored = stored_run(arguments)
        print(submit_run(*stored[:2], arguments, arguments) or results_table(_continue(stored)))
        return 0
    job = hydra_app.single_job(arguments)
    if job is not None:
        return _train_single(job, arguments)
    from runner.commands.sweep import OptimizedSweep, start  # imported here, because it imports the modules of sweeps

    with ExitStack() as ended:
        optimized = OptimizedSweep(arguments, ended, debug=debug)
        try:
            jobs = hydra_app.compose_jobs(arguments, optimized.run_batch)
        except KeyboardInterrupt:
            if optimized.running is None:
                again = shlex.join(["runner", *plugin_words(), *redact_overrides(arguments)])
                print(f"runner: stopped before the first job; start it again with: {again}", file=sys.stderr)
            raise
    match jobs:
        case []:
            return 0 if optimized.running is None else optimized.running.exit_code
        case [Job(sweep=None) as job]:
            return _train_single(job, arguments)
    return start(jobs, arguments, debug=debug)


def _train_single(job: Job, arguments: Sequence[str]) -> int:
    config, directory = job.config(), f"{RUN_DIR}{quoted(str(job.run_dir))}"
    submitted = submit_run(config, job.run_dir, [*arguments, directory], [f"{KEY}={job.run_dir}"])
    print(submitted or results_table(_train_job(config, job)))
    return 0


def run(overrides: Sequence[str], callbacks: "Sequence[Callback]" = ()) -> Summary:
    """Train the configuration that ``overrides`` describe, or continue the run that ``resume=DIR`` names."""
    if is_resume(overrides):
        return continue_run(overrides, callbacks)
    job = hydra_app.compose(overrides)
    if not any(override.startswith(RUN_DIR) for override in overrides):
        job = dataclasses.replace(job, run_dir=_free_directory(job.run_dir))
    return _train_job(job.config(), job, callbacks)


def _free_directory(default: Path) -> Path:
    """Return ``default`` or, if it holds a run that started in the same second, the same path with a number."""
    numbered = (default.with_name(f"{default.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([default], numbered) if not (path / RUN_FILE).exists())


def _train_job(config: Config, job: Job, callbacks: "Sequence[Callback]" = ()) -> Summary:
    from runner.training.run import run

    config = fix_machine_values(config, usable_cores())
    return run(config, job.run_dir, overrides=job.overrides, sweep=job.sweep, resume=False, callbacks=callbacks)


def continue_run(arguments: Sequence[str], callbacks: "Sequence[Callback]" = ()) -> Summary:
    """Resume a stored run, in its own directory, from its newest checkpoint."""
    return _continue(stored_run(arguments), callbacks)


def _continue(stored: tuple[Config, Path, list[str]], callbacks: "Sequence[Callback]" = ()) -> Summary:
    config, run_dir, overrides = stored
    from runner.training.run import run

    return run(config, run_dir, overrides=overrides, sweep=None, resume=True, callbacks=callbacks)


_MIB = 2**20


def results_table(summary: Summary) -> str:
    """Return aligned lines with the results, the speed and the directory of a run."""
    if summary.simulation is not None:
        return simulated_text(summary, summary.simulation)
    return aligned(_facts(summary))


def _metric_text(summary: Summary, name: str) -> str:
    """Return a metric of the kept network and, if they differ, the last or the best value."""
    last, best, kept = significant(summary.final[name]), summary.best.get(name), summary.headline.get(name)
    if summary.best_checkpoint is None:
        if best is None or significant(best) == last:
            return last
        return f"{last}  ({_best_of(summary, name)}: {significant(best)})"
    if kept is None:  # a training metric that was not logged at the step of the best checkpoint
        return f"{last}  (at the end)"
    text = significant(kept)
    return text if text == last else f"{text}  (best checkpoint; at the end {last})"


def _best_of(summary: Summary, metric: str) -> str:
    """Return a text such as "best of 5 evaluations on the test split".

    The text names the split, because a best value on the test split says too little about unknown examples.
    """
    count, split = summary.evaluations, metric.partition("/")[0]
    of = f"best of {count} evaluation{'' if count == 1 else 's'}"
    # The training loss at an evaluation is of one batch, not of the split.
    return of if split == "train" else f"{of} on the {split} split"


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "status", summary.status
    if summary.stopped:
        yield "stopped early", summary.stopped
    kernels = ", ".join(f"{device}: {library}" for device, library in summary.kernels.items()) or "none"
    yield "strategy", f"{summary.strategy}, {summary.workers} worker(s), kernels {kernels}"
    if summary.emulated:
        yield "network", f"emulated: {summary.emulated}"
    for name in in_order(summary.final):
        yield name, _metric_text(summary, name)
    if summary.init_from:
        left = f", {len(summary.init_left)} not loaded (see run.log)" if summary.init_left else ""
        yield "weights from", f"{summary.init_from}: {len(summary.init_taken)} loaded{left}"
    if summary.best_checkpoint is not None and summary.monitor is not None and summary.best_value is not None:
        reached = f"{summary.monitor} {significant(summary.best_value)}, {_best_of(summary, summary.monitor)}"
        yield "best checkpoint", f"{summary.best_checkpoint}, {reached}"
    yield "steps", f"{summary.steps:,} ({summary.examples:,} examples) in {summary.wall_seconds:.1f} s"
    if summary.step_time_s:
        p10, median, p90 = (summary.step_time_s[key] * 1000 for key in ("p10", "median", "p90"))
        yield "step time", f"median {median:.2f} ms, p10 {p10:.2f} ms, p90 {p90:.2f} ms"
    if summary.examples_per_s:
        yield "examples/s", rate(summary.examples_per_s)
    if any(summary.bytes_sent_per_worker):
        sent = [f"{count / _MIB:,.1f}" for count in summary.bytes_sent_per_worker]
        yield "MiB sent per worker", ", ".join(sent[: summary.workers])
        if servers := sent[summary.workers :]:
            yield "MiB sent per server", ", ".join(servers)
    peaks = ", ".join(f"{name} {count / _MIB:,.0f}" for name, count in summary.peak_memory_bytes.items())
    if peaks:
        yield "peak memory, MiB", peaks
    if summary.weights_sha256:
        yield "weights_sha256", summary.weights_sha256
    yield "run directory", summary.output_dir
