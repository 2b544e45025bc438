"""The results that a table stores: sizes of a network, simulated times, and values of a finished training run."""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from runner.checkpoint import load, newest
from runner.config.configuration import fix_machine_values, target_of, to_plain
from runner.config.schema import Config
from runner.data.dataset import EncodedImage, Examples, Split
from runner.data.settings import DatasetSettings, load_limited
from runner.errors import ConfigError, DataError, NumericError
from runner.records.run_directory import METRICS_FILE
from runner.records.summary import cpu_model, versions
from runner.sweeps.outcome import ENDED, Outcome
from runner.system.machine import cpu_flags, usable_cores
from runner.tables.results import Evaluation, Result, ResultOrigin, kind_of
from runner.tables.table import (
    COUNT,
    EXAMPLES_PER_S,
    HOURS,
    PARAMETERS,
    SIMULATED,
    STEP_MEDIAN,
    STEP_P90,
    STEP_TIME,
    UPDATE_TIME,
    WEIGHT_DIFFERENCE,
    Column,
)
from runner.tracking.metrics_log import read_metrics
from runner.training.build import build
from runner.training.first_steps import FirstSteps, first_steps
from runner.training.layers import layer_rows
from runner.training.simulation import hardware_of, simulate

_NUMERICAL = ("python", "numpy", "onednn", "llvmlite")
_VECTORS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_STREAMED_AT_ONCE = 256
_LOSS, _EXAMPLES = "train/loss", "train/examples"


def count_sizes(config: Config, columns: Mapping[str, Column], origin: ResultOrigin) -> Result:
    """Return the sizes that the columns read. The graph is built for one example; nothing is trained."""
    rows = layer_rows(build(fix_machine_values(config, usable_cores())))
    values = {}
    for column in columns.values():
        chosen = [row for row in rows if not column.layers or row.kind in column.layers]
        counts = (row.parameters if column.read == PARAMETERS else row.multiply_adds for row in chosen)
        values[column.size] = float(sum(counts))
    return Result(COUNT, to_plain(config), values, origin=origin)


SIMULATED_UPDATES = 5
"""The number of counted updates of a simulation in a table, unless its configuration states another number."""


def simulated_times(config: Config, origin: ResultOrigin) -> Result:
    """Return the times of a configuration on the hardware that it describes; see :mod:`runner.training.simulation`.

    A first update is not counted. ``simulate.updates`` is the number of the following updates. If it is null, these are
    all of ``train.steps`` on hardware with disturbances, and otherwise :data:`SIMULATED_UPDATES`.
    """
    hardware, steps = hardware_of(config), config.train.steps
    further = steps - 1 if hardware.disturbances.any and steps is not None else 0
    found = simulate(config, config.simulate.updates or further or SIMULATED_UPDATES)
    values = {UPDATE_TIME: found.step_s, HOURS: found.hours, EXAMPLES_PER_S: found.examples_per_s}
    if times := found.worker_step_s:
        values |= {STEP_MEDIAN: median(times), STEP_P90: times[math.ceil(0.9 * len(times)) - 1]}
    return Result(SIMULATED, to_plain(config), values, origin=origin)


def is_result(outcome: Outcome) -> bool:
    """Return whether a job has a result: it reached its last step, or its loss was no longer finite."""
    error = outcome.error
    return outcome.status in ENDED or (error is not None and error.exit_code == NumericError.exit_code)


def begun(config: Config, data: str, origin: ResultOrigin) -> ResultOrigin:
    """Return ``origin`` with the facts that are found before a run: the program's first updates, machine and data.

    config: the composed configuration with the seed. data: the result of :func:`data_digests`.
    """
    first = fingerprint(config).weights_sha256
    return replace(origin, data=data, machine=kind_of_machine(config), first_steps=first)


def measured(outcome: Outcome, config: Config, kind: str, against: Outcome | None, origin: ResultOrigin) -> Result:
    """Return the result of a job for which :func:`is_result` holds.

    config: the composed configuration with the seed. against: the job whose final weights are compared with the final
    weights of this run; None for none. origin: the result of :func:`begun`. Raises ConfigError if the two runs have
    different variables, DataError if the files of the run are damaged.
    """
    summary, directory = outcome.summary, Path(outcome.directory)
    assert summary is not None, "a job with a result has a summary"
    values = {"updates": float(summary.steps), "examples": float(summary.examples)}
    if summary.step_time_s:
        values[STEP_TIME] = summary.step_time_s["median"]
    if summary.examples_per_s is not None:
        values[EXAMPLES_PER_S] = summary.examples_per_s
    compared_with = ""
    if against is not None:
        assert against.summary is not None, "a job with a result has a summary"
        compared_with = against.summary.weights_sha256 or ""
        failed = failure_of(outcome) or failure_of(against)
        values[WEIGHT_DIFFERENCE] = math.nan if failed else weight_difference(Path(against.directory), directory)
    evaluations, ended = tuple(_evaluations(directory / METRICS_FILE)), _origin_after_run(origin, outcome)
    plain, failure = to_plain(config), failure_of(outcome)
    return Result(kind, plain, values, config.seed, evaluations, failure, compared_with, ended)


def failure_of(outcome: Outcome) -> str:
    """Return the message of the error that ended a job before its last step, or ""."""
    return "" if outcome.status in ENDED or outcome.error is None else outcome.error.message


def _origin_after_run(origin: ResultOrigin, outcome: Outcome) -> ResultOrigin:
    """Return the origin with the facts of an ended run, without ``first_steps`` if another kind of machine ran it."""
    summary = outcome.summary
    assert summary is not None
    here = kind_of({"cpu": summary.cpu_model, **{name: summary.versions[name] for name in _NUMERICAL}})
    elsewhere = not here.items() <= origin.machine.items()
    return replace(
        origin,
        commit=summary.git_commit or "",
        versions=summary.versions,
        machine=here if elsewhere else origin.machine,
        first_steps="" if elsewhere else origin.first_steps,
        weights_sha256=summary.weights_sha256 or "",
        seconds=summary.wall_seconds,
        directory=os.path.relpath(outcome.directory),
        mlflow_run=outcome.mlflow_run_id,
    )


def fingerprint(config: Config) -> FirstSteps:
    """Make the first updates of a composed configuration on this machine, and return their results."""
    return first_steps(build(fix_machine_values(config, usable_cores())))


def kind_of_machine(config: Config) -> dict[str, str]:
    """Return the facts about this machine that can change the last bits of a run's values."""
    cluster, found = fix_machine_values(config, usable_cores()).cluster, versions()
    facts = {
        "cpu": cpu_model(),
        "vectors": " ".join(flag for flag in _VECTORS if flag in cpu_flags()),
        "blas": _blas(),
        "device": cluster.device_taken,
        "threads": str(cluster.threads_per_worker),
    }
    return kind_of(facts | {name: found[name] for name in _NUMERICAL})


def _blas() -> str:
    """Return the kernels with which NumPy multiplies float64 matrices; an environment variable can choose them."""
    found = [each for each in threadpool_info() if each["user_api"] == "blas"]
    # SciPy, once it is imported, can add a separate BLAS.
    used = [each for each in found if "numpy" in each["filepath"]] or found
    return " ".join(sorted({str(each.get("architecture", each["internal_api"])) for each in used}))


def _evaluations(path: Path) -> Iterator[Evaluation]:
    """Yield the evaluations of a run from its metrics.jsonl; the records of one step are joined."""
    steps: dict[int, dict[str, float]] = {}
    if path.exists():
        for record in read_metrics(path):
            steps.setdefault(record.step, {}).update(record.values)
    for step, values in steps.items():
        scored = {name: value for name, value in values.items() if name.startswith(("val/", "test/", "adapt/"))}
        if scored:
            loss = {_LOSS: values[_LOSS]} if _LOSS in values else {}
            yield Evaluation(step, int(values[_EXAMPLES]), {**loss, **scored})


def weight_difference(first: Path, second: Path) -> float:
    """Return the largest absolute difference between the newest checkpoints of two runs, in float64; NaN if one is NaN.

    All variables are compared, including those of the optimizer. Raises ConfigError if names or shapes differ.
    """
    one, other = (_variables(run) for run in (first, second))
    pairs = {name: (one.get(name), other.get(name)) for name in {**one, **other}}
    for name, (a, b) in pairs.items():
        if a is None or b is None or a.shape != b.shape:
            raise ConfigError(f"{first} and {second}: expected runs with the same variables, but {name} differs")
    largest = [np.max(np.abs(a - b), initial=0) for a, b in pairs.values() if a is not None and b is not None]
    return float(np.max(largest))  # unlike max(), this function does not skip NaN


def _variables(run: Path) -> dict[str, NDArray[np.float64]]:
    path = newest(run / "checkpoints")
    if path is None:
        raise ConfigError(f"{run}: expected a run with a checkpoint, with whose weights others are compared")
    return {name: np.asarray(value, np.float64) for name, value in load(path).variables.items()}


def lacking_data(config: Config) -> str:
    """Return the message of the error for a dataset or target domain that is not on this machine, or ""."""
    try:
        for data in filter(None, (config.data, target_of(config))):
            data.require_present()
    except DataError as error:
        return str(error)
    return ""


def data_digests(config: Config, digest: Callable[[DatasetSettings], str]) -> str:
    """Return the digest of the dataset and, if the network is adapted to a target domain, "+" and the target's digest.

    digest: :func:`data_digest`, or a function that caches its results.
    """
    target = target_of(config)
    return digest(config.data) if target is None else f"{digest(config.data)}+{digest(target)}"


def data_digest(settings: DatasetSettings) -> str:
    """Return the first 16 hex digits of a SHA-256 of the examples that runs with these settings use.

    Raises DataError if the dataset is missing or corrupt.
    """
    dataset = load_limited(settings)
    digest = hashlib.sha256()
    for split in (dataset.train, dataset.test):
        for name, values in _fields(split):
            digest.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
            for each in values if values.dtype == object else [np.ascontiguousarray(values)]:
                digest.update(each.content if isinstance(each, EncodedImage) else each.data)
    return digest.hexdigest()[:16]


def _fields(split: Examples) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield (name, values) of each field of a split; if it is streamed, of some examples at a time."""
    if isinstance(split, Split):
        yield from sorted(split.arrays.items())
        return
    for start in range(0, len(split), _STREAMED_AT_ONCE):
        yield from sorted(split.take(np.arange(start, min(start + _STREAMED_AT_ONCE, len(split)))).items())
