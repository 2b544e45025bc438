"""A model-parallel step beside the same step on one device and under plain data parallelism."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median
from time import perf_counter

from runner.config.schema import Config
from runner.engine.compile import compile_signature
from runner.engine.conductor import Conductor
from runner.engine.device import local_cluster
from runner.engine.kernel_table import kernels_for
from runner.records.run_directory import RunDirectory
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from runner.training.build import build, open_session, task_of
from runner.training.devices import cards_of
from runner.training.experiment import Experiment
from runner.training.steps import train_step

OWN = "model"


def predicted_step_s(experiment: Experiment) -> dict[str, float]:
    """Seconds of a training step by the cost model: of the placement, of ``single`` and of ``sync_data``.

    All with the same batch, devices and links. ``sync_data`` is left out where a worker would have no example.
    """
    settled = experiment.settled
    assert settled is not None, "only an experiment that was placed is compared"
    found = {OWN: settled.placement.step_s}
    for name, strategy in _others(experiment.config).items():
        program = strategy.build(task_of(experiment.config, experiment.facts))
        cards = cards_of(experiment.config.cluster, strategy.workers, servers=0)
        cluster = replace(experiment.cluster, devices=local_cluster(strategy.workers, cards=cards).devices)
        signature = program.clients["train"].signature
        kernels = kernels_for(cluster.devices)
        compiled = compile_signature(program.graph, signature, cluster, kernels, seconds=settled.seconds)
        found[name] = compiled.step_s
    return found


def measured_step_s(experiment: Experiment, directory: RunDirectory, steps: int) -> dict[str, float]:
    """Median seconds of so many training steps of the experiment itself, of ``single`` and of ``sync_data``.

    Each starts from the initial weights in a session of its own and takes one step more, at first, that is not
    counted. ``single`` has the kernel threads of all workers together.
    """
    found = {}
    for name, each in _experiments(experiment):
        with open_session(each, directory, check_finite=False) as session:
            session.run("init")
            conductor = each.program.conduct(session)
            found[name] = median([_seconds_of_step(each, conductor, step) for step in range(steps + 1)][1:])
    return found


def verdict(step_s: Mapping[str, float], how: str) -> str:
    """One sentence on who is fastest; ``how`` says where the numbers come from, such as "predicted"."""
    own, fastest = step_s[OWN], min(step_s, key=step_s.__getitem__)
    times = ", ".join(f"{name} {1e3 * seconds:,.3f} ms" for name, seconds in step_s.items())
    if step_s[fastest] < own:
        return (
            f"model parallelism loses, as {how}: {fastest} takes {step_s[fastest] / own:.0%} of its time for a step "
            f"({times})"
        )
    return f"model parallelism is not slower than the others, as {how} ({times})"


def _seconds_of_step(experiment: Experiment, conductor: Conductor, step: int) -> float:
    begin = perf_counter()
    train_step(conductor, experiment, step)
    return perf_counter() - begin


def _others(config: Config) -> dict[str, Single | SyncData]:
    """The strategies to compare with."""
    workers = config.parallelism.workers
    others: dict[str, Single | SyncData] = {"single": Single()}
    if workers <= min(config.train.batch_size, config.train.eval_batch_size):
        others["sync_data"] = SyncData(workers=workers)
    return others


def _experiments(experiment: Experiment) -> Iterator[tuple[str, Experiment]]:
    config = experiment.config
    threads, cores = experiment.threads_per_worker, config.cluster.cores_per_worker
    yield OWN, experiment
    for name, strategy in _others(config).items():
        joined = config.parallelism.workers // strategy.workers
        cluster = replace(
            config.cluster,
            workers=strategy.workers,
            cards=None if config.cluster.cards is None else config.cluster.cards[: strategy.workers],
            threads_per_worker=threads * joined,
            cores_per_worker=None if cores is None else cores * joined,
            emulate=config.cluster.emulate and strategy.workers > 1,
            one_process=config.cluster.one_process if strategy.workers > 1 else None,
            collectives=None,
        )
        yield name, build(replace(config, parallelism=strategy, cluster=cluster))
