"""Build an experiment from a configuration, and open the session that executes its program."""

import dataclasses
import math
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from runner.config.check import training_facts
from runner.config.outcome import outcome_hash
from runner.config.schema import Config, LocalCluster
from runner.data.dataset import Facts
from runner.data.settings import limited_facts
from runner.data.source import source_from_config
from runner.engine.cluster.emulation import BYTES_PER_S_OF_MBIT, EmulatedLink, Emulation, Stragglers
from runner.engine.compile.program import Program
from runner.engine.graph import GPU, state_dtype
from runner.engine.graph.graph import without_collection
from runner.engine.run.interleaving import Interleaving, Recorded, virtual_time
from runner.engine.run.kernel_table import kernels_for
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import Session
from runner.errors import ConfigError
from runner.fields import Field
from runner.plugin import loadable, plugin_errors, provenance
from runner.records.decisions import outcome_of
from runner.records.endings import read_endings
from runner.records.run_directory import RunDirectory
from runner.records.summary import joining_facts
from runner.strategies.base import Strategy, Workload
from runner.strategies.layer_names import require_selected
from runner.strategies.replica import network_variables
from runner.tasks.base import Task
from runner.training.devices import cluster_of, in_one_process, require_kernels
from runner.training.evaluation import with_validation
from runner.training.experiment import Experiment
from runner.training.memory import require_variables_fit
from runner.training.placement import place_layers
from runner.training.preconditions import replayed_decisions


def build(config: Config, kept_placement: Path | None = None) -> Experiment:
    """Return the experiment of a checked configuration. Nothing is written or started.

    kept_placement: the file with the placement of a resumed run. Raises ConfigError if model, data and strategy do not
    fit each other, or if the code of a plugin fails; ResourceError if the variables exceed this machine's memory.
    """
    with plugin_errors(provenance()):
        return _build(config, kept_placement)


def _build(config: Config, kept_placement: Path | None) -> Experiment:
    facts, strategy = limited_facts(config.data), config.parallelism
    total_steps = updates_of(config, facts)
    program = program_of(config, facts, total_steps)
    require_variables_fit(program)
    replayed = replayed_decisions(config)
    if replayed is not None and outcome_of(replayed) != outcome_hash(config):
        raise ConfigError(
            f"parallelism.replay={replayed} is not the record of a run with this configuration; use the "
            "config.yaml of the recorded run"
        )
    cluster = cluster_of(config.cluster, program)
    if config.cluster.device_taken == GPU:
        require_kernels(program, cluster, kernels_for(cluster.devices))
    placed, placement = None, strategy.layer_placement
    if placement is not None:
        placed = place_layers(placement, program, cluster, kernels_for(cluster.devices), kept_placement)
        program = placed.program
    if facts.val_examples:
        program = with_validation(program)
    return Experiment(
        config=config,
        facts=facts,
        program=program,
        cluster=cluster,
        total_steps=total_steps,
        steps_per_epoch=facts.train_examples / strategy.examples_per_update(config.train.batch_size),
        threads_per_worker=config.cluster.threads_per_worker,
        emulation=_emulation(config.cluster, config.seed),
        placed=placed,
    )


def updates_of(config: Config, facts: Facts) -> int:
    """Return the number of updates of a run. facts: the facts of its data."""
    if config.train.steps is not None:
        return config.train.steps
    # The decimal number: as a float, 0.07 epochs of 50,000 examples are more than 3,500 examples.
    epochs = Fraction(repr(config.train.epochs))
    examples: int = config.parallelism.examples_per_update(config.train.batch_size)
    return math.ceil(epochs * facts.train_examples / examples)


@without_collection()
def program_of(config: Config, facts: Facts, total_steps: int, *, simulated: bool = False) -> Program:
    """Return the strategy's program; raises ConfigError if the strategy does not fit the data and the settings.

    simulated: return the program for simulation.
    """
    strategy: Strategy = config.parallelism
    known = replace(training_facts(config), total_steps=total_steps)
    if faults := list(strategy.faults(known)):
        raise ConfigError("\n".join(faults))
    workload = workload_of(config, facts)
    if config.optimizer.rules:
        trained = [variable.name for variable in network_variables(workload) if variable.trainable]
        workload.optimizer.require_fitting(trained)
    built: object = strategy.build_for_simulation(workload) if simulated else strategy.build(workload)
    if not isinstance(built, Program):  # a plugin's strategy may return anything
        raise ConfigError(f"parallelism.name={strategy.name}: build returned {built}; expected a Program")
    require_selected("train.recompute", config.train.recompute or (), built.graph)
    program = in_one_process(config.cluster, built, strategy.name)
    if config.cluster.emulate and program.one_process is not None:
        raise ConfigError(
            f"cluster.emulate=true with parallelism={strategy.name} in one process: there is no link to emulate; use "
            "cluster.emulate=false, or workers in separate processes"
        )
    return program


def workload_of(config: Config, facts: Facts) -> Workload:
    """Return the workload of a configuration, the same for all strategies. facts: the facts of its data."""
    task: Task = config.task
    task.require_fields(facts.fields, config.data.name)
    # Only x has the dtype of activations, because bfloat16 would round the numbers that the network has to predict.
    fields = {name: facts.fields[name] for name in task.fields}
    numbers = {name: Field(each.shape, each.dtype or state_dtype(config.precision)) for name, each in fields.items()}
    return Workload(
        network=task.network(config.model, facts.fields),
        optimizer=config.optimizer.for_batch(config.train.batch_size),
        fields={**numbers, "x": fields["x"]},
        dtype=config.precision,
        seed=config.seed,
        batch_size=config.train.batch_size,
        eval_batch_size=config.train.eval_batch_size,
        microbatches=config.train.microbatches,
        recompute=tuple(config.train.recompute or ()),
    )


def source_document(config: Config) -> dict[str, Any]:
    """Return the plain description from which a process builds the input source of a configuration."""
    return {
        "config": dataclasses.asdict(config.data),
        "seed": config.seed,
        "batch_size": config.parallelism.examples_per_update(config.train.batch_size),
        "eval_batch_size": config.train.eval_batch_size,
        "dtype": state_dtype(config.precision),
    }


@contextmanager
def open_session(experiment: Experiment, directory: RunDirectory, check_finite: bool) -> Iterator[Session]:
    """Open the session of an experiment, on worker processes unless the program requests a single process.

    check_finite: raise NumericError, with the name of the node, at the first value that is not finite. Raises
    ConfigError if the record that the run replays cannot be used.
    """
    document = source_document(experiment.config)
    # Kernels are loaded first, because the thread limit applies only to libraries that are already loaded.
    registry = kernels_for(experiment.cluster.devices)
    computed = (experiment.program, experiment.cluster, registry)
    if experiment.program.one_process is not None:
        order = _interleaving(experiment)
        with (
            threadpool_limits(experiment.threads_per_worker),
            source_from_config(**document) as source,
            closing(LocalSession(*computed, source, check_finite=check_finite, interleaving=order)) as local_session,
        ):
            yield local_session
    else:
        # Imported here, because the modules for processes and messages take long to import.
        from runner.engine.cluster.cluster_session import ClusterSession
        from runner.training.launching import launcher_of

        launcher = launcher_of(experiment, directory, os.environ)
        with ClusterSession(
            *computed,
            document,
            run_id=directory.run_id,
            epoch=directory.epoch,
            logs=directory.workers,
            threads=experiment.threads_per_worker,
            check_finite=check_finite,
            emulation=experiment.emulation,
            launcher=launcher,
            facts=joining_facts(loadable(), remote=launcher.has_keys),
        ) as cluster_session:
            yield cluster_session


def _interleaving(experiment: Experiment) -> Interleaving | None:
    """Return the order of concurrent clients in one process, from a record or a virtual clock; else None."""
    strategy: Strategy = experiment.config.parallelism
    if strategy.replayed is not None and strategy.race is not None and strategy.race.decisions is None:
        return Recorded(read_endings(Path(strategy.replayed), outcome_hash(experiment.config)))
    alone = experiment.program.one_process
    return None if alone is None or alone.clock is None else virtual_time(alone.clock)


def _emulation(config: LocalCluster, seed: int) -> Emulation | None:
    if not config.emulate:
        return None
    rate, slow = config.bandwidth_mbit, config.stragglers
    link = EmulatedLink((config.latency_ms or 0.0) / 1e3, None if rate is None else rate * BYTES_PER_S_OF_MBIT)
    workers = None if slow.workers is None else tuple(slow.workers)
    return Emulation(link, Stragglers(slow.distribution, slow.median_ms / 1e3, slow.sigma, workers, seed))
