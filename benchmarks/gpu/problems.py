"""The problems of the networks measured on a GPU. Each is written once for all precisions and modes, without Hydra."""

import os
from contextlib import closing
from pathlib import Path

from benchmarks.cases import Case
from benchmarks.gpu.networks import workload_of
from benchmarks.network import write_problem
from benchmarks.problem import Problem
from runner.engine.graph import local_cluster
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.strategies.single import Single


def prepare(case: Case, folder: Path) -> Problem:
    """Create a folder with the float32 problem of a case. Its initial values are drawn on the CPU."""
    folder.mkdir(parents=True)
    workload = workload_of(case, "float32")
    with closing(LocalSession(Single().build(workload), local_cluster(1), load_kernels())) as session:
        session.run("init")
        saved = session.run("save")
    return write_problem(
        folder,
        workload,
        case.classes,
        saved,
        precision="float32",
        threads=os.cpu_count() or 1,
        learning_rate=case.learning_rate,
    )
