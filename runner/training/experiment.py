"""A configuration, wired: everything the training loop needs, and nothing that has been started yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.config.schema import Config
from runner.data.dataset import Facts
from runner.engine.device import Cluster
from runner.engine.emulation import Emulation
from runner.engine.program import Program
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
    def eval_every(self) -> int:
        """Steps between evaluations: as configured, or once per epoch."""
        return self.config.train.eval_every or max(1, round(self.steps_per_epoch))

    @property
    def eval_batches(self) -> dict[str, int]:
        """Evaluation batches that cover each split that is scored; the last is padded."""
        size = self.config.train.eval_batch_size
        examples = {TEST: self.facts.test_examples, VALIDATION: self.facts.val_examples}
        return {split: -(-count // size) for split, count in examples.items() if count}
