"""A configuration, wired: everything the training loop needs, and nothing that has been started yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.config.schema import Config
from runner.data.dataset import Facts
from runner.engine.cluster.emulation import Emulation
from runner.engine.compile.program import Program
from runner.engine.graph.device import Cluster
from runner.training.evaluation import TEST, VALIDATION
from runner.training.placement import Settled


@dataclass(frozen=True)
class Experiment:
    """What a configuration amounts to.

    total_steps: updates of the whole run. steps_per_epoch: updates in which every example is given out once; not
    whole when what is given out in an update does not divide the training split. threads_per_worker: kernel threads of
    each process. emulation: waits of a slow network that is emulated, None where the network is real. settled: how the
    program was placed, None where the strategy itself says where everything is.
    """

    config: Config
    facts: Facts
    program: Program
    cluster: Cluster
    total_steps: int
    steps_per_epoch: float
    threads_per_worker: int
    emulation: Emulation | None
    settled: Settled | None = None

    def learning_rate(self, step: int) -> float:
        """The rate of update number ``step``, counted from 0."""
        config: Any = self.config
        factor: float = config.schedule.factor(step, self.total_steps, self.steps_per_epoch)
        return float(config.optimizer.lr) * factor

    @property
    def measured_steps(self) -> int:
        """Steps of the run and of other strategies that are measured for comparison before training."""
        placement = self.config.parallelism.layer_placement
        return 0 if placement is None else int(placement.measured_steps)

    @property
    def runs_in_virtual_time(self) -> bool:
        """Whether one process runs overlapping clients on a virtual clock."""
        one_process = self.program.one_process
        return one_process is not None and one_process.clock is not None

    @property
    def eval_every(self) -> int:
        """Steps between evaluations: as configured, or once per epoch."""
        return self.config.train.eval_every or max(1, round(self.steps_per_epoch))

    @property
    def eval_batches(self) -> dict[str, int]:
        """Evaluation batches that cover each split that is scored; the last is padded."""
        size = self.config.train.eval_batch_size
        examples = {TEST: self.facts.test_examples, VALIDATION: self.facts.val_examples}
        return {split: -(-count // size) for split, count in examples.items() if count}
