"""The strategy ``single`` with a client for each timed phase."""

import numpy as np

from benchmarks.null_step import IDS, RandomIds, network_of
from benchmarks.timed_single import CLIENTS, TimedSingle
from runner.engine.graph import local_cluster
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import scalar
from runner.fields import Field
from runner.kernels.registry import Registry
from runner.optimizers import Sgd
from runner.strategies import Workload


def test_only_the_phase_step_changes_a_table_of_which_it_reads_few_rows(registry: Registry) -> None:
    fields = {"x": Field((1,), "int64"), "y": Field((1,))}
    workload = Workload(network_of(2 * IDS), Sgd(), fields, "float32", 0, IDS, IDS)
    program = TimedSingle().build(workload)
    session = LocalSession(program, local_cluster(1), registry, RandomIds(2 * IDS))
    session.run("init")
    feeds = {"step": scalar(0, "int64"), "learning_rate": scalar(0.1, "float32")}
    losses, changed = [], []
    for client in CLIENTS.values():
        given = {name: feeds[name] for name in program.clients[client].feeds}
        losses.append(session.run(client, step=0, feeds=given)["loss"])
        changed.append(any(np.any(value) for value in session.run("save").values()))
    assert len(set(map(float, losses))) == 1
    assert changed == [False, False, True]
