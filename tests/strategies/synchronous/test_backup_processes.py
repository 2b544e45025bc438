"""Backup workers in real processes, some with emulated delays: each step equals ``single`` over the counted shares."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from runner.data.source import source_from_config
from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.cluster.emulation import Emulation, Stragglers
from runner.engine.graph.device import local_cluster
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from tests.strategies.backup_runs import Run, backed, expected_of
from tests.strategies.networks import EXAMPLE_SHAPE, NETWORKS, TEST_BATCH, task_of
from tests.strategies.training import expect_same_bits

STEPS = 10
SLOW = Emulation(stragglers=Stragglers("lognormal", median_s=0.005, sigma=1.5, seed=3))


@pytest.mark.parametrize(
    ("network", "workers", "backups", "servers"),
    [("dense", 3, 2, 1), ("convolutional", 2, 1, 1), ("batch_normalised", 2, 1, 2)],
)
def test_every_step_equals_single_over_the_shares_that_counted(
    network: str, workers: int, backups: int, servers: int, registry: Registry, tmp_path: Path
) -> None:
    task = task_of(NETWORKS[network], Momentum(clip_norm=0.5), batch_size=7)
    strategy = backed(workers, backups, servers)
    program = strategy.build(task)
    config = {"name": "synthetic", "shape": list(EXAMPLE_SHAPE), "classes": 3, "examples": 64, "test_examples": 16}
    described: dict[str, Any] = {
        "config": config,
        "seed": 1,
        "batch_size": strategy.examples_per_update(task.batch_size),
        "eval_batch_size": TEST_BATCH,
        "dtype": "float64",
    }
    cluster = local_cluster(program.workers, program.servers)
    own: dict[str, Any] = {"run_id": secrets.token_hex(8), "epoch": 1, "logs": tmp_path, "threads": 1}
    with (
        source_from_config(**described) as source,
        ClusterSession(program, cluster, registry, described, **own, emulation=SLOW) as session,
    ):
        session.run("init")
        run = Run(program, session, source, "float64")
        history, weights = run.train(range(STEPS)), run.weights()
        expected, reference = expected_of(task, run.lines(), backups, registry, source)
    expect_same_bits(weights, expected)
    assert history == reference
