"""Backup workers: the first shares that come make the update, to the bit as ``single`` would from them alone."""

from __future__ import annotations

from itertools import product

import pytest

from runner.kernels.registry import Registry
from runner.optimizers.momentum import Momentum
from tests.strategies.backup_runs import backed, drawn_time, expected_of, running
from tests.strategies.networks import NETWORKS, task_of
from tests.strategies.training import expect_same_bits

STEPS = 8


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(("workers", "backups"), list(product([1, 2, 3], [1, 2])))
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_every_step_equals_single_over_the_shares_that_counted(
    network: str, workers: int, backups: int, servers: int, registry: Registry
) -> None:
    task = task_of(NETWORKS[network], Momentum(weight_decay=1e-3, clip_norm=0.5), batch_size=13)
    with running(backed(workers, backups, servers), task, registry, drawn_time(workers + backups)) as run:
        history, weights, lines = run.train(range(STEPS)), run.weights(), run.lines()
        expected, reference = expected_of(task, lines, backups, registry, run.program.examples)
    assert len({tuple(line["contributors"]) for line in lines}) > 1
    assert any(line["dropped"] for line in lines)
    expect_same_bits(weights, expected)
    assert history == reference
