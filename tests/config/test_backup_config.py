"""What backup workers change about a configuration: processes, threads, and how long a pass over the data is."""

from __future__ import annotations

import math

from runner.config.configuration import fix_machine_values
from runner.config.schema import worker_processes
from runner.training.build import build
from tests.small_runs import small_config

BACKED = (
    "parallelism=sync_data",
    "parallelism.workers=2",
    "parallelism.combine=parameter_server",
    "parallelism.backup_workers=2",
)


def test_cores_are_shared_out_to_backup_workers_too() -> None:
    config = small_config(*BACKED)
    config.cluster.threads_per_worker = None
    assert worker_processes(config) == 4
    fixed = fix_machine_values(config, cores=8)
    assert (fixed.cluster.threads_per_worker, fixed.cluster.workers) == (2, 4)
    assert worker_processes(small_config()) == 1


def test_a_pass_over_the_data_gives_out_every_example_once() -> None:
    experiment = build(small_config(*BACKED, "train.batch_size=50", "train.epochs=2", "train.steps=null"))
    assert experiment.config.parallelism.examples_per_update(50) == 100
    assert experiment.facts.train_examples == 1438
    assert experiment.total_steps == math.ceil(2 * 14.38)
