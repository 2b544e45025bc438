"""``single``: one device does everything. The oracle every other strategy is compared with."""

from dataclasses import dataclass, replace

from runner.engine.conductor import Clients, Conductor
from runner.engine.device import worker_task
from runner.engine.program import TRAIN, OneProcess, Program
from runner.optimizers.lbfgs import Lbfgs
from runner.strategies.base import Task
from runner.strategies.clients import program
from runner.strategies.lbfgs.minimising import LbfgsConductor, WholeBatch
from runner.strategies.lbfgs.vectors import Vectors, require_no_averages
from runner.strategies.microbatches import Computed, computed_in_parts, updating


@dataclass
class Single:
    """One worker, in the user's own process.

    With ``train.microbatches=k`` the batch is computed in k shares whose gradients are summed in share order: the
    arithmetic of ``sync_data`` with k workers, bit for bit. With ``optimizer=lbfgs`` an update evaluates its batch
    several times, by the client ``train``: it stores the gradient instead of applying it.
    """

    name: str = "single"
    workers: int = 1

    def build(self, task: Task) -> Program:
        """Return the program: k forward and backward passes, ordered sums, one update.

        Raises ConfigError where batch normalisation meets ``optimizer=lbfgs``.
        """
        computed = computed_in_parts(task, worker_task(0))
        made = _minimising(task.optimizer, computed) if isinstance(task.optimizer, Lbfgs) else updating(computed)
        return replace(made, one_process=OneProcess())


def _minimising(optimizer: Lbfgs, computed: Computed) -> Program:
    """The program whose ``train`` evaluates a batch, with the clients of L-BFGS."""
    require_no_averages(computed.updates)
    replica = computed.replica
    vectors = Vectors(replica.graph, replica.variables, optimizer.history)
    objective = vectors.objective(optimizer, [total for _, total in computed.totals])
    commands = {client.name: client for client in vectors.clients(deferred=False)}
    plain = program(replica.graph, [replica], loss=computed.loss, accuracy=computed.accuracy, targets=objective.targets)
    train = plain.clients[TRAIN]
    evaluating = replace(train, fetches={**train.fetches, **objective.penalties})
    trained = [variable.name for variable in vectors.trained]

    def conduct(clients: Clients) -> Conductor:
        evaluator = WholeBatch(clients, list(objective.penalties))
        return LbfgsConductor(evaluator, optimizer, trained, replica.task.state_dtype)

    return replace(plain, clients={**plain.clients, TRAIN: evaluating, **commands}, conduct=conduct)
