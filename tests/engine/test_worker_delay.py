"""A slow worker is slow from when it is told to begin: what it receives may come meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.engine.links import Link
from runner.engine.program import Client, Program
from runner.engine.tensor import Tensor
from runner.engine.transport.messages import Done, Launch
from runner.kernels.registry import Registry
from tests.engine.remote_programs import there_and_back
from tests.engine.test_worker import Source
from tests.engine.virtual_cluster import virtual_cluster

LATENCY_S = 2.0


def one_way() -> Program:
    """Worker 0 reads and sends, worker 1 computes."""
    program = there_and_back()
    run = program.clients["run"]
    away = Client("away", fetches={"away": Tensor("away")}, inputs=run.inputs, feeds=run.feeds, deferred=True)
    return replace(program, clients={"init": program.clients["init"], "away": away})


@pytest.mark.parametrize(("delay_s", "expected_s"), [(0.0, 2.0), (1.5, 2.0), (5.0, 5.0)])
def test_a_delay_and_a_transfer_pass_at_the_same_time(
    delay_s: float, expected_s: float, tmp_path: Path, registry: Registry
) -> None:
    with virtual_cluster(one_way(), tmp_path, registry, lambda description: Source()) as cluster:
        cluster.set_up(link=Link(latency_s=LATENCY_S))
        plan = cluster.load("away")
        cluster.feed("away", {"rate": np.float64(1.0)})
        told = cluster.network.clock.now
        cluster.tell(Launch("away", 0, 0.0), ["worker-0"])
        cluster.tell(Launch("away", 0, delay_s), ["worker-1"])
        cluster.answers(Done, plan.plans)
        assert cluster.network.clock.now - told == pytest.approx(expected_s, abs=0.1)
        np.testing.assert_array_equal(plan.fetch(Tensor("away")), np.ones(3))
        cluster.dismiss()
