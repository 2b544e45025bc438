"""The statistics of batch normalisation if several workers compute one batch.

Each option of ``parallelism.statistics`` is a function from the replicas and their forward passes to
:class:`Normalised`. Networks without batch normalisation are the same under all options.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from runner.engine.compile.passes.rewriting import Moved
from runner.engine.graph import ops
from runner.engine.graph.autodiff import gradients
from runner.engine.graph.network import StateUpdate
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.variables import Variable
from runner.strategies.replica import Forward, Gradients, Pass, Replica, Share
from runner.strategies.synchronous.pooled_normalization import pool_normalizations

_SCOPE = "train"


@dataclass(frozen=True)
class Normalised:
    """The statistics of the workers' passes, one item per worker.

    parts: updates of moving averages whose values must be summed over the workers. settled: updates of moving averages
    whose values are final and equal on all workers. moved: tensor of the passes -> tensor that replaces it; if it is
    not empty, the outputs of a worker depend on the examples of all workers.
    """

    parts: Sequence[Sequence[StateUpdate]]
    settled: Sequence[Sequence[StateUpdate]]
    moved: Moved = field(default_factory=dict)


Statistics = Callable[[Sequence[Replica], Sequence[Pass]], Normalised]
"""A function of the replicas of one graph and their forward passes, which are not yet differentiated.

It may rewrite the graph; afterwards, ``replica.graph`` is the rewritten graph.
"""


def of_shares(replicas: Sequence[Replica], passes: Sequence[Pass]) -> Normalised:
    """Normalise each share by its own statistics; moving averages advance by their mean, weighted by size.

    The weighted parts of that mean are summed together with the gradients.
    """
    parts = [replica.weighted(passed) for replica, passed in zip(replicas, passes, strict=True)]
    return Normalised(parts, _nothing(replicas))


def of_first_worker(replicas: Sequence[Replica], passes: Sequence[Pass]) -> Normalised:
    """Normalise each share by its own statistics; moving averages advance by those of the first share alone.

    On Cloud TPU (Inception v3 guide, "Batch normalization") only shard 0 updates the averages, once a step. The decay a
    of a network assumes K workers that update the averages one after the other, K times a step. Here it becomes a^K,
    because K updates with decay a equal one with a^K if all shares have the same statistics: 0.9997 for eight GPUs is
    0.9997^8 = 0.9976 for eight shards.

    The first worker sends its statistics, n values of b bytes, in one message to each other worker: (K - 1) n b bytes.
    If parameter servers keep the averages, it sends them to the servers instead, n b bytes.
    """
    received = _sent_by_first(replicas, passes[0])
    settled = [_updates(passed, values, workers=len(replicas)) for passed, values in zip(passes, received, strict=True)]
    return Normalised(_nothing(replicas), settled)


def of_batch(replicas: Sequence[Replica], passes: Sequence[Pass]) -> Normalised:
    """Normalise by the statistics of the whole batch, so that the workers compute what one worker would.

    Bytes: see :func:`pool_normalizations`. Nothing more is sent for the moving averages, because every worker already
    has the statistics of the batch.
    """
    graph, moved = pool_normalizations(replicas[0].graph, [replica.device for replica in replicas])
    if not moved:
        return of_shares(replicas, passes)
    for replica in replicas:
        replica.adopt(graph)
    settled = [
        [replace(each, batch_value=moved.get(each.batch_value, each.batch_value)) for each in passed.state_updates]
        for passed in passes
    ]
    return Normalised(_nothing(replicas), settled, moved)


STATISTICS: dict[str, Statistics] = {"shares": of_shares, "first_worker": of_first_worker, "pooled": of_batch}


Compute = Callable[[Sequence[Replica], Sequence[Share]], list[Gradients]]
"""Adds the forward and backward pass of each replica over its share; returns the gradients of each replica."""


def compute_gradients(replicas: Sequence[Replica], shares: Sequence[Share], statistics: Statistics) -> list[Gradients]:
    """Add the forward and backward pass of each replica over its share; returns the gradients of each replica.

    If the outputs of a worker depend on the examples of all workers, the sum of all losses is differentiated once for
    the variables of all replicas. A worker's gradient is then that of the batch's loss for its copy of the variables,
    and the sum over the workers is the gradient of the network.
    """
    passes = [replica.forward(share, _SCOPE) for replica, share in zip(replicas, shares, strict=True)]
    normalised = statistics(replicas, passes)
    if normalised.moved:
        passes = [_moved(each, normalised.moved) for each in passes]
        pairs = _together(replicas, passes)
    else:
        pairs = [replica.differentiate(passed) for replica, passed in zip(replicas, passes, strict=True)]
    return [
        Gradients(passed.loss, passed.accuracy, own, parts, settled)
        for passed, own, parts, settled in zip(passes, pairs, normalised.parts, normalised.settled, strict=True)
    ]


def _nothing(replicas: Sequence[Replica]) -> list[list[StateUpdate]]:
    return [[] for _ in replicas]


def _together(replicas: Sequence[Replica], passes: Sequence[Forward]) -> list[list[tuple[Variable, Tensor]]]:
    """Differentiate the sum of the losses for the variables of every replica."""
    wanted = [replica.variables.trainable for replica in replicas]
    found = iter(
        gradients(
            replicas[0].graph,
            [passed.loss for passed in passes],
            [variable.tensor for own in wanted for variable in own],
            scope=f"{_SCOPE}/gradients",
        )
    )
    return [
        replica.paired(own, [next(found) for _ in own], passed.scope)
        for replica, own, passed in zip(replicas, wanted, passes, strict=True)
    ]


def _sent_by_first(replicas: Sequence[Replica], passed: Pass) -> list[list[Tensor]]:
    """Return the first worker's statistics as every worker holds them."""
    graph, own = replicas[0].graph, [update.batch_value for update in passed.state_updates]
    if not own or len(replicas) == 1:
        return [own for _ in replicas]
    held = []
    with graph.layer(passed.state_updates[0].variable.layer), graph.absolute_scope(f"{_SCOPE}/statistics"):
        with graph.device(replicas[0].device):
            sent = ops.concat(graph, own, axis=0, name="sent")
        # The first worker also uses the sent values, because compression may have changed them.
        for replica in replicas:
            with graph.device(replica.device):
                held.append(list(ops.split(graph, sent, 0, [graph.spec(each).size for each in own])))
    return held


def _updates(passed: Pass, values: Sequence[Tensor], workers: int) -> list[StateUpdate]:
    return [
        StateUpdate(own.variable, value, own.decay**workers)
        for own, value in zip(passed.state_updates, values, strict=True)
    ]


def _moved(passed: Forward, moved: Moved) -> Forward:
    """Return the forward pass in the rewritten graph."""
    loss, accuracy = (moved.get(tensor, tensor) for tensor in (passed.loss, passed.accuracy))
    return replace(passed, loss=loss, accuracy=accuracy)
