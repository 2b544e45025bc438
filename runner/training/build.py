"""Configuration to experiment, and experiment to session: the only place that wires the parts together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from runner.config.outcome import outcome_hash
from runner.config.schema import Config, LocalCluster
from runner.data.dataset import Facts
from runner.data.limits import facts_of
from runner.data.source import source_from_config
from runner.engine.cluster_session import ClusterSession
from runner.engine.device import GPU
from runner.engine.emulation import Emulation
from runner.engine.interleaving import Interleaving, Recorded
from runner.engine.kernel_table import kernels_for
from runner.engine.links import BYTES_PER_S_OF_MBIT, Link
from runner.engine.local_session import LocalSession
from runner.engine.program import OneProcess, Program
from runner.engine.session import Session
from runner.engine.stragglers import Stragglers
from runner.engine.tensor import state_dtype
from runner.errors import ConfigError
from runner.plugin import faults_told, pinned_references, provenance
from runner.processor import require_precision
from runner.records.decisions import outcome_of
from runner.records.endings import read_endings
from runner.records.run_directory import RunDirectory
from runner.strategies.base import Task
from runner.strategies.model import ModelParallel
from runner.training.devices import cluster_of, in_one_process, require_kernels
from runner.training.evaluation import with_validation
from runner.training.experiment import Experiment
from runner.training.placement import settle


def build(config: Config, kept_placement: Path | None = None) -> Experiment:
    """Wire a checked configuration; nothing is written or started, and only files that parallelism names are read.

    kept_placement: where layers are in a run that goes on, so that they stay there. Raises ConfigError when model, data
    and strategy do not fit each other, or when a plugin's part of them fails.
    """
    with faults_told(provenance()):
        return _build(config, kept_placement)


def _build(config: Config, kept_placement: Path | None) -> Experiment:
    parts: Any = config
    facts = facts_of(parts.data)
    program: Any = parts.parallelism.build(task_of(config, facts))
    if not isinstance(program, Program):  # a plugin's strategy may return anything
        raise ConfigError(f"parallelism.name={parts.parallelism.name}: build returned {program}; expected a Program")
    program = in_one_process(config.cluster, program, config.parallelism.name)
    steps_per_epoch = facts.train_examples / _examples_of(config, program)
    if config.train.steps is not None:
        total_steps = config.train.steps
    else:
        assert config.train.epochs is not None, "a checked configuration says how long to train"
        total_steps = math.ceil(config.train.epochs * steps_per_epoch)
    _require_possible(config, program, total_steps)
    if program.replayed_steps is not None:
        _require_own_record(Path(parts.parallelism.replay), outcome_hash(config))
    cluster = cluster_of(config.cluster, program)
    if config.cluster.device_taken == GPU:
        require_kernels(program, cluster, kernels_for(cluster.devices))
    settled = None
    if isinstance(config.parallelism, ModelParallel):
        settled = settle(config.parallelism, program, cluster, kept_placement)
        program = settled.program
    if facts.val_examples:
        program = with_validation(program)
    return Experiment(
        config=config,
        facts=facts,
        program=program,
        cluster=cluster,
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        threads_per_worker=config.cluster.threads_per_worker,
        emulation=_emulation(config.cluster, config.seed),
        settled=settled,
    )


def task_of(config: Config, facts: Facts) -> Task:
    """What a configuration trains, whatever its strategy. facts: of its data."""
    parts: Any = config
    return Task(
        network=parts.model.network(facts.classes),
        optimizer=parts.optimizer,
        example_shape=facts.shape,
        dtype=config.precision,
        seed=config.seed,
        batch_size=config.train.batch_size,
        eval_batch_size=config.train.eval_batch_size,
        microbatches=config.train.microbatches,
    )


@contextmanager
def open_session(experiment: Experiment, directory: RunDirectory, check_finite: bool) -> Iterator[Session]:
    """Start what runs the experiment: this very process if its program wishes that, worker processes otherwise.

    check_finite: stop at the first value that is not finite, and name its node. Raises ConfigError where a processor
    that computes lacks the instructions for the configured precision, and for the record of an earlier run that cannot
    be used.
    """
    config: Any = experiment.config
    if config.cluster.device_taken != GPU:
        require_precision(config.precision)
    source_document = {
        "config": dataclasses.asdict(config.data),
        "seed": config.seed,
        "batch_size": _examples_of(config, experiment.program),
        "eval_batch_size": config.train.eval_batch_size,
        "dtype": state_dtype(config.precision),
    }
    # Before the budget of threads is set: it holds for libraries that are loaded.
    registry = kernels_for(experiment.cluster.devices)
    if experiment.program.one_process is not None:
        interleaving = _interleaving(experiment.program.one_process, config)
        with (
            threadpool_limits(experiment.threads_per_worker),
            source_from_config(**source_document) as source,
        ):
            session = LocalSession(
                experiment.program,
                experiment.cluster,
                registry,
                source,
                check_finite=check_finite,
                interleaving=interleaving,
            )
            try:
                yield session
            finally:
                session.close()
    else:
        with ClusterSession(
            experiment.program,
            experiment.cluster,
            registry,
            source_document,
            run_id=directory.run_id,
            epoch=directory.epoch,
            logs=directory.workers,
            threads=experiment.threads_per_worker,
            check_finite=check_finite,
            emulation=experiment.emulation,
            worker_options=[f"--plugin={reference}" for reference in pinned_references()],
        ) as cluster_session:
            yield cluster_session


def _examples_of(config: Config, program: Program) -> int:
    """Examples that are given out in an update."""
    return config.train.batch_size if program.examples is None else program.examples


def _require_possible(config: Config, program: Program, total_steps: int) -> None:
    """Raise ConfigError for what the program of a strategy cannot do in so many updates."""
    strategy = config.parallelism.name
    if config.cluster.emulate and program.one_process is not None:
        raise ConfigError(
            f"cluster.emulate=true with parallelism={strategy} in one process: it has no wire to wait for; use "
            "cluster.emulate=false, or let its workers be processes"
        )
    warmstart_steps = getattr(config.parallelism, "warmstart_steps", 0)
    if warmstart_steps and warmstart_steps >= total_steps:
        raise ConfigError(
            f"parallelism.warmstart_steps={warmstart_steps} with {total_steps} updates in all: the first replica would "
            "make them all alone; use fewer warmstart_steps, or train longer (train.steps, train.epochs)"
        )


def _require_own_record(path: Path, outcome: str) -> None:
    """Raise ConfigError where what was decided in an earlier run is to count again in a run of something else."""
    if outcome_of(path) != outcome:
        raise ConfigError(
            f"parallelism.replay={path} is not the record of a run with this configuration: repeat it with that run's "
            "config.yaml"
        )


def _interleaving(wish: OneProcess, config: Config) -> Interleaving | None:
    if wish.replay is not None:
        return Recorded(read_endings(Path(wish.replay), outcome_hash(config)))
    return None if wish.interleaving is None else wish.interleaving()


def _emulation(config: LocalCluster, seed: int) -> Emulation | None:
    if not config.emulate:
        return None
    rate = config.bandwidth_mbit
    slow = config.stragglers
    return Emulation(
        Link((config.latency_ms or 0.0) / 1e3, None if rate is None else rate * BYTES_PER_S_OF_MBIT),
        Stragglers(
            slow.distribution,
            slow.median_ms / 1e3,
            slow.sigma,
            None if slow.workers is None else tuple(slow.workers),
            seed,
        ),
    )
