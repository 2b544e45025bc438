"""``single``: training on one device, the reference for every other strategy."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from runner.bounds import SmallCount
from runner.engine.compile.program import OneProcess, Program
from runner.engine.graph import worker_task
from runner.engine.graph.rows import dense
from runner.optimizers.lbfgs import Lbfgs
from runner.strategies.base import Strategy, TrainingFacts, Workload
from runner.strategies.clients import program_of, train_client
from runner.strategies.lbfgs.minimising import Minimisation
from runner.strategies.lbfgs.vectors import Vectors, require_no_averages
from runner.strategies.microbatches import computed_in_parts, updating
from runner.strategies.replica import Gradients, Replica


@dataclass
class Single(Strategy):
    """One worker, in the user's own process.

    With ``train.microbatches=k``, the batch is computed in k shares whose gradients are summed in share order. If the k
    workers of ``sync_data`` sum in worker order, both results are equal bit for bit. With ``optimizer=lbfgs``, an
    update runs the client ``train`` several times; each run stores the batch's gradient instead of applying it.
    """

    splits_batch: ClassVar[bool] = False
    line_search: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = True

    name: str = "single"
    workers: SmallCount = 1

    def faults(self, facts: TrainingFacts) -> Iterator[str]:
        """Yield faults, including more than one worker, and settings for links between workers."""
        yield from super().faults(facts)
        if self.workers > 1:
            yield (
                f"parallelism.workers={self.workers} with parallelism=single: expected 1; "
                "use parallelism=sync_data for more workers"
            )
        if facts.compression != "none":
            yield (
                f"cluster.compression={facts.compression} with parallelism=single: nothing is sent; use "
                "cluster.compression=none"
            )
        if facts.emulated:
            yield (
                "cluster.emulate=true with parallelism=single: one process sends nothing over a network; "
                "use cluster.emulate=false, or parallelism=sync_data"
            )

    def build(self, workload: Workload) -> Program:
        """Return the program: a forward and a backward pass per microbatch, sums in order, one update.

        Raises ConfigError for batch normalisation with ``optimizer=lbfgs``.
        """
        replica, computed = computed_in_parts(workload, worker_task(0))
        if isinstance(workload.optimizer, Lbfgs):
            program = _minimising(workload.optimizer, replica, computed)
        else:
            program = updating(replica, computed)
        return replace(program, one_process=OneProcess())


def _minimising(optimizer: Lbfgs, replica: Replica, computed: Gradients) -> Program:
    """Return the program in which ``train`` evaluates a batch and other clients run the commands of L-BFGS."""
    require_no_averages(computed.state_updates)
    vectors = Vectors(replica.graph, replica.variables, optimizer.history)
    objective = vectors.objective(optimizer, [dense(replica.graph, total) for _, total in computed.gradients])
    fetched = {**computed.metrics, **objective.penalties}
    clients = [train_client([replica], metrics=fetched, targets=objective.targets), *vectors.clients(deferred=False)]
    trained = [variable.name for variable in vectors.trained]
    step_driver = Minimisation(optimizer, trained, replica.workload.state_dtype, list(objective.penalties))
    return program_of(replica.graph, [replica], clients, step_driver=step_driver)
