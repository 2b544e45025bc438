"""An experiment (a configuration with its program, cluster and data facts), and its training step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.config.schema import Config, spare_processes
from runner.data.dataset import Facts
from runner.engine.cluster.emulation import Emulation
from runner.engine.compile.program import Program
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import Cluster, state_dtype
from runner.engine.run.kernel_table import kernels_for
from runner.engine.run.step_driver import StepDriver
from runner.optimizers.base import Optimizer
from runner.optimizers.schedules import Schedule
from runner.training.evaluation import TEST, VALIDATION
from runner.training.placement import PlacedLayers

_SERIES_S = 0.2
"""Longest time in seconds by which a series of updates may delay a checkpoint, the display or a stop on a signal."""


@dataclass(frozen=True)
class Experiment:
    """A configuration and the parts of its run that are known before the run starts.

    total_steps: number of updates in the whole run. steps_per_epoch: number of updates in which every training example
    is read once, not always an integer. threads_per_worker: kernel threads of each process. emulation: the emulated
    links and slow workers; None without emulation. placed: the program with the placement of its layers; None if the
    strategy assigns all devices itself.
    """

    config: Config
    facts: Facts
    program: Program
    cluster: Cluster
    total_steps: int
    steps_per_epoch: float
    threads_per_worker: int
    emulation: Emulation | None
    placed: PlacedLayers | None = None

    def plans(self) -> ProgramPlans:
        """Return an object that makes the plans of the program when they are requested."""
        return ProgramPlans(self.program, self.cluster, kernels_for(self.cluster.devices))

    @cached_property
    def optimizer(self) -> Optimizer:
        """The optimizer with the learning rate and the weight decay for the batch of this configuration."""
        chosen: Optimizer = self.config.optimizer
        return chosen.for_batch(self.config.train.batch_size)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of update number ``step``, counted from 0, with the schedule of the run."""
        return self._rate(self.config.schedule, step)

    def rates(self, step: int) -> NDArray[Any]:
        """Return the learning rates of an update, in the shape ``optimizer.rate_shape``."""
        rates = [self._rate(schedule, step) for schedule in (self.config.schedule, *self._schedules)]
        return np.array(rates if self._schedules else rates[0], state_dtype(self.config.precision))

    @cached_property
    def _schedules(self) -> list[Schedule]:
        return self.optimizer.schedules

    def _rate(self, schedule: Schedule, step: int) -> float:
        return self.optimizer.lr * schedule.factor(step, self.total_steps, self.steps_per_epoch)

    @property
    def runs_in_virtual_time(self) -> bool:
        """Whether one process runs concurrent clients, in an order that a virtual clock determines."""
        one_process = self.program.one_process
        return one_process is not None and one_process.clock is not None

    @property
    def spares(self) -> int:
        """The number of spare processes; 0 if lost processes are not replaced, or if there are no worker processes."""
        return spare_processes(self.config) if self.program.one_process is None else 0

    @property
    def eval_every(self) -> int:
        """The number of steps between evaluations: ``train.eval_every`` or, if it is not set, an epoch."""
        return self.config.train.eval_every or max(1, round(self.steps_per_epoch))

    @property
    def eval_batches(self) -> dict[str, int]:
        """The number of evaluation batches of each split that is not empty; the last batch is padded."""
        size = self.config.train.eval_batch_size
        examples = {TEST: self.facts.test_examples, VALIDATION: self.facts.val_examples}
        return {split: -(-count // size) for split, count in examples.items() if count}

    @property
    def advice_on_divergence(self) -> str:
        """The optimizer's advice to the user after a value became infinite or NaN."""
        return str(self.config.optimizer.against_divergence)


def train_step(step_driver: StepDriver, experiment: Experiment, step: int) -> Mapping[str, NDArray[Any]]:
    """Run update number ``step`` with its learning rates; return its loss and metrics."""
    return step_driver.update(step, experiment.rates(step))


def train_steps(step_driver: StepDriver, experiment: Experiment, steps: range) -> Sequence[Mapping[str, NDArray[Any]]]:
    """Run consecutive updates with their learning rates; return the loss and metrics of each."""
    if len(steps) == 1:
        return [train_step(step_driver, experiment, steps[0])]
    return step_driver.updates(steps[0], [experiment.rates(step) for step in steps])


def series_length(longest: int, step_s: float) -> int:
    """Return the number of updates of the next series. longest: the driver's limit. step_s: seconds of an update."""
    return min(longest, max(1, int(_SERIES_S / step_s)))
