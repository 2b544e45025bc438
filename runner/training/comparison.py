"""Compare the step time of a placed program with the step times of other strategies, predicted or measured."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median

from runner.config.check import training_facts
from runner.config.configuration import option_of
from runner.config.schema import Config, LocalCluster, for_one_process
from runner.engine.compile.compile import compile_signature
from runner.engine.graph import local_cluster
from runner.engine.run.kernel_table import kernels_for
from runner.engine.run.step_driver import bind
from runner.records.run_directory import RunDirectory
from runner.strategies.base import Strategy
from runner.training.build import build, open_session, workload_of
from runner.training.devices import gpus_of
from runner.training.experiment import Experiment
from runner.training.first_steps import timed_steps


def predicted_step_s(experiment: Experiment) -> dict[str, float]:
    """Return strategy -> predicted seconds of a training step (cost model); the experiment's strategy comes first.

    All strategies train the same batch over the same links. A strategy that cannot train the batch is left out, for
    example because a worker would have no example.
    """
    placed = experiment.placed
    assert placed is not None, "only an experiment with a placement can be compared"
    found = {experiment.config.parallelism.name: placed.placement.step_s}
    for name, config in _rivals(experiment).items():
        strategy: Strategy = config.parallelism
        program = strategy.build(workload_of(config, experiment.facts))
        gpus = gpus_of(config.cluster, strategy.workers, servers=0)
        cluster = replace(experiment.cluster, devices=local_cluster(strategy.workers, gpus=gpus).devices)
        signature = program.clients["train"].signature
        kernels = kernels_for(cluster.devices)
        compiled = compile_signature(program.graph, signature, cluster, kernels, seconds=placed.seconds)
        found[name] = compiled.step_s
    return found


def measured_step_s(experiment: Experiment, directory: RunDirectory, steps: int) -> dict[str, float]:
    """Return strategy -> median step time in seconds over ``steps`` steps; the experiment's strategy comes first.

    Each strategy starts from the initial weights in a separate session. An additional first step is not counted. A
    strategy with fewer workers uses the same total number of kernel threads.
    """
    found = {}
    for name, each in _experiments(experiment):
        with open_session(each, directory, check_finite=False) as session:
            session.run("init")
            step_driver = bind(each.program.step_driver, session)
            found[name] = median(timed_steps(step_driver, each, steps + 1)[0][1:])
    return found


def verdict(step_s: Mapping[str, float], how: str) -> str:
    """Return a line that compares the first strategy with the fastest. how: such as "measured over 5 steps each"."""
    own, fastest = next(iter(step_s)), min(step_s, key=step_s.__getitem__)
    times = ", ".join(f"{name} {1e3 * seconds:,.3f} ms" for name, seconds in step_s.items())
    if step_s[fastest] < step_s[own]:
        return f"{own} takes {step_s[own] / step_s[fastest]:.2f} times as long as {fastest}, as {how} ({times})"
    return f"{own} is the fastest strategy, as {how} ({times})"


def _experiments(experiment: Experiment) -> Iterator[tuple[str, Experiment]]:
    yield experiment.config.parallelism.name, experiment
    yield from ((name, build(config)) for name, config in _rivals(experiment).items())


def _rivals(experiment: Experiment) -> dict[str, Config]:
    """Return strategy -> configuration for each strategy to compare with, on the experiment's cluster."""
    config = experiment.config
    placement, rivals = config.parallelism.layer_placement, {}
    assert placement is not None, "only an experiment with a placement can be compared"
    for name, settings in placement.rivals.items():
        strategy: Strategy = option_of("parallelism", {"name": name, **settings})
        rival = replace(config, parallelism=strategy, cluster=_cluster_of(config, strategy.workers))
        if not any(strategy.faults(training_facts(rival))):
            rivals[name] = rival
    return rivals


def _cluster_of(config: Config, workers: int) -> LocalCluster:
    """Return the cluster with all its cores and threads divided among ``workers``; a single worker has no links."""
    cluster: LocalCluster = for_one_process(config.cluster) if workers == 1 else config.cluster
    joined = config.parallelism.workers // workers
    threads, cores = cluster.threads_per_worker, cluster.cores_per_worker
    return replace(
        cluster,
        workers=workers,
        gpus=None if cluster.gpus is None else cluster.gpus[:workers],
        threads_per_worker=None if threads is None else threads * joined,
        cores_per_worker=None if cores is None else cores * joined,
        compression="none" if workers == 1 else cluster.compression,
        collectives=None,
    )
