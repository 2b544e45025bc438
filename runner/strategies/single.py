"""``single``: one device does everything. The oracle every other strategy is compared with."""

from dataclasses import dataclass, replace

from runner.engine.device import worker_device
from runner.engine.program import OneProcess, Program
from runner.strategies.base import Task
from runner.strategies.microbatches import in_microbatches


@dataclass
class Single:
    """One worker, in the user's own process.

    With ``train.microbatches=k`` the batch is computed in k shares whose gradients are summed in share order: the
    arithmetic of ``sync_data`` with k workers, bit for bit.
    """

    name: str = "single"
    workers: int = 1

    def build(self, task: Task) -> Program:
        """Return the program: k forward and backward passes, ordered sums, one update."""
        return replace(in_microbatches(task, worker_device(0)), one_process=OneProcess())
