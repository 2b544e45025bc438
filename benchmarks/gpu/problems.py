"""The problems of the networks measured on a GPU. Each is written once for all precisions and modes, without Hydra."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from benchmarks.cases import Case
from benchmarks.gpu.networks import workload_of
from benchmarks.network import forward_layers, random_batch
from benchmarks.problem import Problem
from runner.engine.graph.device import local_cluster
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.optimizers.sgd import Momentum
from runner.strategies.base import Workload
from runner.strategies.single import Single


def prepare(case: Case, folder: Path) -> Problem:
    """Create a folder with the float32 problem of a case. Its initial values are drawn on the CPU."""
    folder.mkdir(parents=True)
    workload = workload_of(case, "float32")
    layers, trainable = forward_layers(workload)
    assert isinstance(workload.optimizer, Momentum), "problems require the momentum optimizer"
    threads = os.cpu_count() or 1
    rate, momentum = workload.optimizer.lr, workload.optimizer.momentum
    problem = Problem(folder, layers, trainable, "float32", threads, rate, momentum)
    x, y = random_batch(case.batch, case.shape, case.classes)
    saved = _initial_values(workload)
    problem.save(x, y, {name: saved[name] for name in (*problem.trainable, *problem.moving)})
    return problem


def _initial_values(workload: Workload) -> Mapping[str, NDArray[Any]]:
    program = Single().build(workload)
    session = LocalSession(program, local_cluster(1), load_kernels())
    try:
        session.run("init")
        return session.run("save")
    finally:
        session.close()
